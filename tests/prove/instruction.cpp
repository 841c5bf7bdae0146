// Decoding by Zydis.
#include "prove/instruction.hpp"

#include <Zydis/Zydis.h>

namespace clew::prove {
namespace {

const ZydisDecoder& decoder() {
  static const ZydisDecoder made = [] {
    ZydisDecoder fresh;
    ZydisDecoderInit(&fresh, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
    return fresh;
  }();
  return made;
}

bool is_stack_pointer(ZydisRegister reg) {
  return ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, reg) == ZYDIS_REGISTER_RSP;
}

/// Instructions whose new stack pointer is the old one and a distance.
bool moves_relatively(const ZydisDecodedInstruction& instruction, const ZydisDecodedOperand* operands) {
  switch (instruction.mnemonic) {
    case ZYDIS_MNEMONIC_ADD:
    case ZYDIS_MNEMONIC_SUB:
    case ZYDIS_MNEMONIC_AND:
    case ZYDIS_MNEMONIC_INC:
    case ZYDIS_MNEMONIC_DEC:
    case ZYDIS_MNEMONIC_ENTER:
      return true;
    case ZYDIS_MNEMONIC_LEA:
      return operands[1].mem.base == ZYDIS_REGISTER_RSP;
    case ZYDIS_MNEMONIC_POP:
      return operands[0].type != ZYDIS_OPERAND_TYPE_REGISTER || !is_stack_pointer(operands[0].reg.value);
    case ZYDIS_MNEMONIC_LEAVE:
      return false;
    default:
      // Push, call and return move it as a hidden operand; the rest name it.
      for (int i = 0; i < instruction.operand_count; ++i) {
        const ZydisDecodedOperand& operand = operands[i];
        if (operand.visibility != ZYDIS_OPERAND_VISIBILITY_HIDDEN &&
            operand.type == ZYDIS_OPERAND_TYPE_REGISTER && is_stack_pointer(operand.reg.value) &&
            (operand.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0)
          return false;
      }
      return true;
  }
}

bool writes_stack_pointer(const ZydisDecodedInstruction& instruction, const ZydisDecodedOperand* operands) {
  for (int i = 0; i < instruction.operand_count; ++i)
    if (operands[i].type == ZYDIS_OPERAND_TYPE_REGISTER && is_stack_pointer(operands[i].reg.value) &&
        (operands[i].actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0)
      return true;
  return false;
}

Flow flow_of(const ZydisDecodedInstruction& instruction, const ZydisDecodedOperand* operands) {
  switch (instruction.meta.category) {
    case ZYDIS_CATEGORY_CALL:
      return Flow::kCall;
    case ZYDIS_CATEGORY_RET:
      return Flow::kReturn;
    case ZYDIS_CATEGORY_COND_BR:
      return Flow::kJump;
    case ZYDIS_CATEGORY_UNCOND_BR:
      return operands[0].type == ZYDIS_OPERAND_TYPE_IMMEDIATE ? Flow::kJump : Flow::kIndirectJump;
    case ZYDIS_CATEGORY_SYSCALL:
      return Flow::kSyscall;
    default:
      return Flow::kStraight;
  }
}

}  // namespace

std::optional<Instruction> decode(std::span<const std::byte> bytes) {
  ZydisDecodedInstruction decoded;
  ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
  if (!ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder(), bytes.data(), bytes.size(), &decoded, operands)))
    return std::nullopt;
  Instruction instruction;
  instruction.length = decoded.length;
  instruction.flow = flow_of(decoded, operands);
  instruction.moves_stack = writes_stack_pointer(decoded, operands) && !moves_relatively(decoded, operands);
  instruction.repeats =
      (decoded.attributes & (ZYDIS_ATTRIB_HAS_REP | ZYDIS_ATTRIB_HAS_REPE | ZYDIS_ATTRIB_HAS_REPNE)) != 0;
  return instruction;
}

std::string disassemble(std::span<const std::byte> bytes, uint64_t address) {
  ZydisDecodedInstruction decoded;
  ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
  if (!ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder(), bytes.data(), bytes.size(), &decoded, operands)))
    return "(bad)";
  ZydisFormatter formatter;
  ZydisFormatterInit(&formatter, ZYDIS_FORMATTER_STYLE_INTEL);
  char text[128];
  if (!ZYAN_SUCCESS(ZydisFormatterFormatInstruction(&formatter, &decoded, operands,
                                                    decoded.operand_count_visible, text, sizeof text, address,
                                                    nullptr)))
    return "(bad)";
  return text;
}

}  // namespace clew::prove
