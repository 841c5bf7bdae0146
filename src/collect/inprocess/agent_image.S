/* The agent's bytes (cmake/agent.cmake builds them). */
  .section .rodata
  .globl clew_agent_image
  .globl clew_agent_image_end
  .p2align 4
clew_agent_image:
  .incbin CLEW_AGENT_IMAGE
clew_agent_image_end:
  .section .note.GNU-stack, "", @progbits
