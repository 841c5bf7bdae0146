# The BPF programs (src/bpf/*.bpf.c), compiled by clang and made a header that the recorder carries them in.
find_program(CLEW_BPF_CLANG NAMES clang-19 clang REQUIRED)
find_program(CLEW_BPFTOOL NAMES bpftool PATHS /usr/sbin /sbin REQUIRED)
find_library(CLEW_LIBBPF NAMES libbpf.a REQUIRED)
set(CLEW_BPF_LIBS ${CLEW_LIBBPF} elf z)

set(directory ${CMAKE_BINARY_DIR}/bpf)
file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/bpf/*.h ${CMAKE_SOURCE_DIR}/src/core/*.h
  ${CMAKE_SOURCE_DIR}/include/clew/frame.h)
add_custom_command(OUTPUT ${directory}/sample.skel.h VERBATIM
  DEPENDS ${CMAKE_SOURCE_DIR}/src/bpf/sample.bpf.c ${headers}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${directory}
  COMMAND ${CLEW_BPF_CLANG} -target bpf -mcpu=v3 -O2 -g -ffreestanding -Wall -Wextra -Werror -Wno-unused-function
          -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_SOURCE_DIR}/include -idirafter /usr/include/x86_64-linux-gnu
          -c ${CMAKE_SOURCE_DIR}/src/bpf/sample.bpf.c -o ${directory}/sample.bpf.o
  COMMAND sh -c "'${CLEW_BPFTOOL}' gen skeleton '${directory}/sample.bpf.o' name clew_sample >'${directory}/sample.skel.h' 2>/dev/null")
add_custom_target(clew_bpf_skeleton DEPENDS ${directory}/sample.skel.h)
