#include "analysis/analysis.hpp"
#include "analysis/instruction.hpp"

namespace clew::analysis {

bool call_precedes(std::span<const std::byte> before) {
  size_t size = before.size();
  auto byte = [&](size_t back) { return std::to_integer<uint8_t>(before[size - back]); };
  if (size >= 5 && byte(5) == 0xe8) return true;
  // ff /2 is 2, 3, 4, 6 or 7 bytes long from its opcode on. Prefixes lie before it and change nothing here.
  for (size_t back = 2; back <= 7 && back <= size; ++back) {
    if (byte(back) != 0xff || (byte(back - 1) >> 3 & 7) != 2) continue;
    Instruction in;
    if (decode(before.last(back), in) && in.length == back) return true;
  }
  return false;
}

}  // namespace clew::analysis
