# The agent that `clew record --collector inprocess` preloads: libclew's objects and src/agent, only libc's names that it
# takes the place of visible. Everything is bound when it is loaded, since its code runs in signal handlers.
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/agent/*.cpp)
add_library(clew_agent MODULE ${sources} $<TARGET_OBJECTS:clew_lib_objects>)
target_link_libraries(clew_agent PRIVATE clew_flags)
target_compile_options(clew_agent PRIVATE -fvisibility=hidden -fvisibility-inlines-hidden -ffunction-sections)
target_link_options(clew_agent PRIVATE -static-libstdc++ -static-libgcc -Wl,--no-undefined -Wl,--gc-sections -Wl,-z,now
  -Wl,-Bsymbolic -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/agent.map)
set_target_properties(clew_agent PROPERTIES PREFIX lib OUTPUT_NAME clew-agent
  LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/agent.map)

# The recorder carries it, without what only a debugger reads.
set(CLEW_AGENT_IMAGE ${CMAKE_BINARY_DIR}/libclew-agent.stripped.so)
add_custom_command(OUTPUT ${CLEW_AGENT_IMAGE} DEPENDS clew_agent VERBATIM
  COMMAND ${CMAKE_OBJCOPY} --strip-all $<TARGET_FILE:clew_agent> ${CLEW_AGENT_IMAGE})
function(clew_carry_agent target)
  set(source ${CMAKE_SOURCE_DIR}/src/collect/inprocess/agent_image.S)
  target_sources(${target} PRIVATE ${source})
  target_compile_definitions(${target} PRIVATE CLEW_WITH_AGENT)
  set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS ${CLEW_AGENT_IMAGE}
    COMPILE_DEFINITIONS "CLEW_AGENT_IMAGE=\"${CLEW_AGENT_IMAGE}\"")
endfunction()
