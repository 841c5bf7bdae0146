// Memory of words for tests of the core, and a table header over dictionaries made by hand.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "clew/frame.h"

struct clew_code;

namespace clew::test {

struct FakeMemory {
  std::map<uint64_t, uint64_t> words;
};

inline bool read_u64(FakeMemory* memory, uint64_t address, uint64_t* out) {
  const auto word = memory->words.find(address);
  if (word == memory->words.end()) return false;
  *out = word->second;
  return true;
}
inline uint32_t find(FakeMemory*, uint64_t, clew_code*) { return CLEW_END_NOT_MAPPED; }

}  // namespace clew::test

#define CLEW_CONTEXT clew::test::FakeMemory*
#define CLEW_READ_U64(context, address, out) clew::test::read_u64(context, address, out)
#define CLEW_FIND(context, pc, code) clew::test::find(context, pc, code)
#include "core/walk.h"

namespace clew::test {

/// A table that has saves lists and an expression pool but no rows.
class FakeTable {
 public:
  FakeTable() : saves_{0} {}
  uint32_t list(std::vector<uint64_t> words) {
    const auto at = static_cast<uint32_t>(saves_.size());
    saves_.insert(saves_.end(), words.begin(), words.end());
    return at;
  }
  int32_t expression(const std::vector<uint8_t>& bytes) {
    const auto at = static_cast<int32_t>(pool_.size());
    pool_.push_back(static_cast<uint8_t>(bytes.size()));
    pool_.push_back(static_cast<uint8_t>(bytes.size() >> 8));
    pool_.insert(pool_.end(), bytes.begin(), bytes.end());
    return at;
  }
  const clew_table_header* header() {
    clew_table_header header{};
    header.saves_at = sizeof header;
    header.saves_count = static_cast<uint32_t>(saves_.size());
    header.pool_at = static_cast<uint32_t>(sizeof header + saves_.size() * 8);
    header.pool_bytes = static_cast<uint32_t>(pool_.size());
    header.bytes = (header.pool_at + header.pool_bytes + 7) / 8 * 8;
    bytes_.assign(header.bytes / 8, 0);
    auto* out = reinterpret_cast<uint8_t*>(bytes_.data());
    std::memcpy(out, &header, sizeof header);
    std::memcpy(out + header.saves_at, saves_.data(), saves_.size() * 8);
    if (!pool_.empty()) std::memcpy(out + header.pool_at, pool_.data(), pool_.size());
    return reinterpret_cast<const clew_table_header*>(bytes_.data());
  }

 private:
  std::vector<uint64_t> saves_, bytes_;
  std::vector<uint8_t> pool_;
};

inline clew_state state_of(std::initializer_list<std::pair<int, uint64_t>> values) {
  clew_state state{};
  for (const auto& [reg, value] : values) {
    state.value[reg] = value;
    state.known |= 1u << reg;
  }
  return state;
}

}  // namespace clew::test
