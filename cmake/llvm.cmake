# LLVM's DWARF reader and demangler, linked statically: only the archives they need, in link order (llvm-config's list
# drags in libz3, libxml2 and more).
set(CLEW_LLVM_ROOT /usr/lib/llvm-19 CACHE PATH "Where LLVM 19 is installed")
set(CLEW_LLVM_INCLUDE ${CLEW_LLVM_ROOT}/include)
set(CLEW_LLVM_LIBS)
foreach(lib DebugInfoDWARF Object IRReader AsmParser BitReader Core Remarks BitstreamReader MCParser MC TextAPI
            DebugInfoCodeView DebugInfoMSF BinaryFormat TargetParser Support Demangle)
  list(APPEND CLEW_LLVM_LIBS ${CLEW_LLVM_ROOT}/lib/libLLVM${lib}.a)
endforeach()
list(APPEND CLEW_LLVM_LIBS ${CLEW_LIB_zstd} ${CLEW_LIB_z} ${CMAKE_DL_LIBS} m)
