// Memory is read by pages that hold until the program goes on; instructions are decoded once an address.
#include "prove/tracee.hpp"

#include <algorithm>
#include <cstring>

#include "process/core_file.hpp"
#include "process/process.hpp"

namespace clew::prove {

Tracee::Tracee(pid_t pid) : pid_(pid), pages_(std::make_unique<std::array<Page, kPages>>()) {}

void Tracee::remapped(bool code) {
  code_remapped_ |= code;
  data_remapped_ = true;
}

bool Tracee::refresh() {
  if (!code_remapped_ && !data_remapped_) return false;
  bool code = code_remapped_;
  code_remapped_ = data_remapped_ = false;
  auto maps = process::read_maps(pid_);
  if (!maps) return true;  // it has just ended
  space_.clear();
  writable_code_.clear();
  for (const process::MapsEntry& entry : *maps) {
    space_.map(process::mapping_from_maps(pid_, *maps, entry, modules_));
    if (entry.executable && entry.writable) writable_code_.emplace_back(entry.start, entry.end);
  }
  if (code) {
    decoded_.clear();
    ++maps_read_;
  }
  return true;
}

const Tracee::Page& Tracee::page_at(uint64_t address) {
  uint64_t start = address & ~uint64_t{kPageBytes - 1};
  Page& page = (*pages_)[start / kPageBytes % kPages];
  if (page.address != start || page.moment != moment_) {
    page.address = start;
    page.moment = moment_;
    page.readable = process::read_memory(pid_, start, page.bytes);
  }
  return page;
}

bool Tracee::read(uint64_t address, void* out, size_t size) {
  auto* bytes = static_cast<std::byte*>(out);
  if (address + size < address) return false;
  while (size > 0) {
    const Page& page = page_at(address);
    size_t within = address % kPageBytes;
    size_t here = std::min(size, kPageBytes - within);
    if (within + here > page.readable) return false;
    std::memcpy(bytes, page.bytes.data() + within, here);
    bytes += here;
    address += here;
    size -= here;
  }
  return true;
}

bool Tracee::find(uint64_t address, unwind::Code& code) {
  if (code_remapped_) refresh();
  return process::find_code(space_, address, code);
}

bool Tracee::is_code(uint64_t address) {
  unwind::Code code;
  return find(address, code) && code.executable;
}

bool Tracee::had_code(uint64_t start, uint64_t end) const {
  const auto& mappings = space_.mappings();
  auto mapping = mappings.upper_bound(start);
  if (mapping != mappings.begin()) --mapping;
  for (; mapping != mappings.end() && mapping->first < end; ++mapping)
    if (mapping->second.executable && mapping->second.end > start) return true;
  return false;
}

bool Tracee::is_writable_code(uint64_t address) const {
  return std::ranges::any_of(writable_code_, [address](const auto& range) {
    return address >= range.first && address < range.second;
  });
}

std::optional<Instruction> Tracee::instruction_at(uint64_t pc) {
  if (code_remapped_) refresh();
  auto known = decoded_.find(pc);
  if (known != decoded_.end()) return known->second;
  std::byte bytes[15];
  size_t got = process::read_memory(pid_, pc, bytes);
  auto instruction = decode({bytes, got});
  if (instruction && !is_writable_code(pc)) decoded_.emplace(pc, *instruction);
  return instruction;
}

std::optional<uint64_t> Tracee::executed_before(uint64_t pc) const {
  for (uint64_t length = 1; length <= 15; ++length) {
    auto known = executed_.find(pc - length);
    if (known != executed_.end() && known->second.length == length) return pc - length;
  }
  return std::nullopt;
}

}  // namespace clew::prove
