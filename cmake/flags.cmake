# Compiler flags that hold for every target. Warnings are errors.
add_library(clew_flags INTERFACE)
target_include_directories(clew_flags INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
target_compile_options(clew_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wcast-qual -Wundef -Werror
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Woverloaded-virtual>
  # libstdc++ 12 uses what it deprecates itself, in std::stable_sort.
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-deprecated-declarations>)
if(CLEW_SANITIZE)
  # gcc's flow analysis sees the sanitizer's own code: in <regex> and <functional> it warns of what is not there.
  target_compile_options(clew_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  target_compile_options(clew_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(clew_flags INTERFACE -fsanitize=address,undefined)
endif()
if(CLEW_FUZZ)
  target_compile_options(clew_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined)
  target_link_options(clew_flags INTERFACE -fsanitize=address,undefined)
endif()
