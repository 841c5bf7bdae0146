# The BPF programs (src/bpf/*.bpf.c), compiled by clang and made a header that the recorder carries them in.
find_program(CLEW_BPF_CLANG NAMES clang-19 clang REQUIRED)
find_program(CLEW_BPFTOOL NAMES bpftool PATHS /usr/sbin /sbin REQUIRED)
find_library(CLEW_LIBBPF NAMES libbpf.a REQUIRED)
set(CLEW_BPF_LIBS ${CLEW_LIBBPF} ${CLEW_LIB_elf} ${CLEW_LIB_zstd} ${CLEW_LIB_z})

# clew_bpf_skeleton(TARGET SOURCE NAME): SOURCE.bpf.c as NAME.skel.h in the build's folder bpf/, made before TARGET.
function(clew_bpf_skeleton target source name)
  set(directory ${CMAKE_BINARY_DIR}/bpf)
  file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/bpf/*.h ${CMAKE_SOURCE_DIR}/src/core/*.h
    ${CMAKE_SOURCE_DIR}/include/clew/frame.h)
  add_custom_command(OUTPUT ${directory}/${name}.skel.h VERBATIM DEPENDS ${source} ${headers}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${directory}
    COMMAND ${CLEW_BPF_CLANG} -target bpf -mcpu=v3 -O2 -g -ffreestanding -Wall -Wextra -Werror -Wno-unused-function
            -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_SOURCE_DIR}/include -idirafter /usr/include/x86_64-linux-gnu
            -c ${source} -o ${directory}/${name}.bpf.o
    # Lint has nothing to say about what bpftool writes.
    COMMAND sh -c "{ echo '/* NOLINTBEGIN */' && '${CLEW_BPFTOOL}' gen skeleton '${directory}/${name}.bpf.o' name ${name} && echo '/* NOLINTEND */'; } >'${directory}/${name}.skel.h' 2>/dev/null")
  add_custom_target(${target}_${name} DEPENDS ${directory}/${name}.skel.h)
  add_dependencies(${target} ${target}_${name})
  target_include_directories(${target} SYSTEM PRIVATE ${directory})
endfunction()
