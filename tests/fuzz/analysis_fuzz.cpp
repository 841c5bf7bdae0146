// Any bytes through every entry point of the instruction analysis. Beyond not crashing: no instruction is
// longer than 15 bytes or than what is there, rows ascend and differ, and no rule puts the CFA at or below
// rsp.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "analysis/analysis.hpp"
#include "analysis/instruction.hpp"

namespace {

using namespace clew::analysis;

void require(bool condition) {
  if (!condition) abort();
}

void check(clew_rule rule) {
  if (clew_rule_kind(rule) != CLEW_CFA_REG) return;
  if (clew_rule_register(rule) == CLEW_RSP) require(clew_rule_offset(rule) >= 8);
  require(clew_rule_bp(rule) != 1 && clew_rule_bp(rule) != CLEW_BP_IN_SAVES && clew_rule_saves(rule) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const std::byte> code = std::as_bytes(std::span(data, size));
  uint64_t address = size ? 0x400000u + data[0] : 0;
  const std::vector<uint64_t> called{address, address + size / 2};
  std::vector<uint64_t> calls;
  for (Code kind : {Code::kPlt, Code::kPltSec, Code::kInit, Code::kStart, Code::kFunction, Code::kUnnamed,
                    Code::kSignalReturn}) {
    std::vector<Row> found = rows(kind, code, address, called, &calls);
    for (size_t i = 0; i < found.size(); ++i) {
      require(found[i].address >= address && found[i].address - address < size);
      require(i == 0 || (found[i].address > found[i - 1].address && found[i].rule != found[i - 1].rule));
      check(found[i].rule);
    }
  }
  for (size_t at = 0; at < size; ++at) {
    Instruction in;
    if (decode(code.subspan(at), in)) require(in.length >= 1 && in.length <= 15 && in.length <= size - at);
    check(rule_at(code, at));
    size_t back = at < 16 ? at : 16;
    call_precedes(code.subspan(at - back, back));
  }
  is_signal_return(code);
  return 0;
}
