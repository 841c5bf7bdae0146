# libclew: the unwinder for other programs, shared and static. Only what its headers declare is visible, and it
# depends on libc alone: the C++ library's few pieces are linked in; compressed sections and separate debug files, which
# need zlib, are left out.
file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/elf/*.cpp ${CMAKE_SOURCE_DIR}/src/cfi/*.cpp
  ${CMAKE_SOURCE_DIR}/src/analysis/*.cpp ${CMAKE_SOURCE_DIR}/src/table/*.cpp ${CMAKE_SOURCE_DIR}/src/unwind/*.cpp)
foreach(file address_space api mapped_file maps memory modules)
  list(APPEND sources ${CMAKE_SOURCE_DIR}/src/process/${file}.cpp)
endforeach()
add_library(clew_lib_objects OBJECT ${sources})
target_link_libraries(clew_lib_objects PRIVATE clew_flags)
target_compile_definitions(clew_lib_objects PRIVATE CLEW_WITHOUT_COMPRESSION)
target_compile_options(clew_lib_objects PRIVATE -fvisibility=hidden -fvisibility-inlines-hidden -ffunction-sections)

add_library(clew_shared SHARED $<TARGET_OBJECTS:clew_lib_objects>)
target_link_options(clew_shared PRIVATE -static-libstdc++ -static-libgcc -Wl,--no-undefined -Wl,--gc-sections
  -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/libclew.map)
set_target_properties(clew_shared PROPERTIES OUTPUT_NAME clew VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/libclew.map EXPORT_NAME clew)
add_library(clew_static STATIC $<TARGET_OBJECTS:clew_lib_objects>)
set_target_properties(clew_static PROPERTIES OUTPUT_NAME clew EXPORT_NAME clew_static)
foreach(target clew_shared clew_static)
  target_include_directories(${target} INTERFACE $<INSTALL_INTERFACE:include>)
endforeach()
target_link_libraries(clew_static INTERFACE stdc++)

include(GNUInstallDirs)
install(TARGETS clew_shared clew_static EXPORT clew COMPONENT library)
install(FILES include/clew/unwind.h include/clew/unwind.hpp include/clew/remote.h include/clew/remote.hpp
  include/clew/frame.h COMPONENT library
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/clew)
install(EXPORT clew NAMESPACE clew:: FILE clewConfig.cmake COMPONENT library
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/clew)
configure_file(cmake/clew.pc.in clew.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/clew.pc COMPONENT library DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
