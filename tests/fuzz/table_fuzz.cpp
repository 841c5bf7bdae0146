// ELF file -> table -> look-ups -> a walk over random memory: whatever the file says, the work is bounded and
// nothing is read outside. The first 8 bytes seed the registers and the memory, the rest is the file.
#include <cstring>
#include <span>
#include <vector>

#include "core/table.h"
#include "elf/image.hpp"
#include "table/table.hpp"
#include "unwind/remote.hpp"

namespace {

uint64_t scramble(uint64_t value) {
  value = (value ^ value >> 31) * 0x9e3779b97f4a7c15u;
  return value ^ value >> 29;
}

/// Every second word of memory is an address of the text or of the stack, so that walks get somewhere.
struct RandomTarget : clew::unwind::Target {
  const clew::table::Table* table;
  uint64_t seed;
  uint64_t text, text_bytes;

  bool read(uint64_t address, void* out, size_t size) override {
    if (scramble(seed ^ address) % 64 == 0) return false;
    auto* bytes = static_cast<unsigned char*>(out);
    for (size_t i = 0; i < size; i += 8) {
      const uint64_t random = scramble(seed + address + i);
      uint64_t word = random;
      if (random % 4 == 0) word = text + (random >> 8) % text_bytes;
      if (random % 4 == 1) word = address + (random >> 8) % 4096;
      std::memcpy(bytes + i, &word, std::min<size_t>(8, size - i));
    }
    return true;
  }
  bool find(uint64_t address, clew::unwind::Code& code) override {
    if (address < text || address - text >= text_bytes) return false;
    code = {text, text + text_bytes, true, 0, table};
    return true;
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 8) return 0;
  uint64_t seed;
  std::memcpy(&seed, data, 8);
  const auto* begin = reinterpret_cast<const std::byte*>(data + 8);
  auto image = clew::elf::Image::from_bytes({begin, begin + (size - 8)}, "input");
  if (!image) return 0;
  auto table = clew::table::compile(*image);
  if (!table) return 0;
  const auto rows = clew::table::dump(**table);
  for (size_t i = 0; i < rows.size(); i += 1 + rows.size() / 256) {
    const clew_rule rule = (*table)->lookup(rows[i].address);
    if (rule != rows[i].rule) __builtin_trap();
    clew::table::describe(**table, rule);
  }

  const clew_table_header& header = *(*table)->header();
  RandomTarget target;
  target.table = table->get();
  target.seed = seed;
  target.text = header.text_base;
  target.text_bytes = (uint64_t{header.page_count} << CLEW_TABLE_PAGE_BITS) + 1;
  std::vector<clew_frame> frames(256);
  for (unsigned round = 0; round < 8; ++round) {
    clew::unwind::Registers registers;
    for (uint64_t& value : registers.value)
      value = scramble(seed + round * 32 + (&value - registers.value.data()));
    registers.value[CLEW_RIP] =
        rows.empty() ? target.text : rows[scramble(seed ^ round) % rows.size()].address + seed % 8;
    registers.known = (1u << CLEW_REGISTERS) - 1;
    const auto result = clew::unwind::walk(target, registers, frames);
    if (result.frames == 0 || result.frames > frames.size()) __builtin_trap();
    if (frames[0].pc != registers.value[CLEW_RIP]) __builtin_trap();
  }
  return 0;
}
