# LLVM's symbolizer, linked statically: only the archives it needs, in link order (llvm-config's list drags in more).
set(CLEW_LLVM_ROOT /usr/lib/llvm-19 CACHE PATH "Where LLVM 19 is installed")
set(CLEW_LLVM_INCLUDE ${CLEW_LLVM_ROOT}/include)
set(CLEW_LLVM_LIBS)
foreach(lib Symbolize DebugInfoDWARF DebugInfoPDB DebugInfoMSF DebugInfoBTF DebugInfoCodeView Object IRReader AsmParser
            BitReader Core Remarks BitstreamReader MCParser MC TextAPI BinaryFormat TargetParser Demangle Support)
  list(APPEND CLEW_LLVM_LIBS ${CLEW_LLVM_ROOT}/lib/libLLVM${lib}.a)
endforeach()
list(APPEND CLEW_LLVM_LIBS zstd z ${CMAKE_DL_LIBS} m)
