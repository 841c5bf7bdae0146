// Mappings by address, as mmap leaves them.
#include "process/address_space.hpp"

namespace clew::process {

namespace {

/// What is left of a mapping from `start` on.
Mapping tail_of(const Mapping& mapping, uint64_t start) {
  Mapping tail = mapping;
  tail.offset += start - mapping.start;
  tail.start = start;
  return tail;
}

}  // namespace

void AddressSpace::map(Mapping mapping) {
  if (mapping.end <= mapping.start) return;
  auto next = by_start_.lower_bound(mapping.start);
  if (next != by_start_.begin()) {
    Mapping& before = std::prev(next)->second;
    if (before.end > mapping.end) by_start_.emplace(mapping.end, tail_of(before, mapping.end));
    before.end = std::min(before.end, mapping.start);
  }
  while (next != by_start_.end() && next->first < mapping.end) {
    if (next->second.end > mapping.end) by_start_.emplace(mapping.end, tail_of(next->second, mapping.end));
    next = by_start_.erase(next);
  }
  const uint64_t start = mapping.start;
  by_start_.insert_or_assign(start, std::move(mapping));
}

const Mapping* AddressSpace::find(uint64_t address) const {
  auto next = by_start_.upper_bound(address);
  if (next == by_start_.begin()) return nullptr;
  const Mapping& mapping = std::prev(next)->second;
  return address < mapping.end ? &mapping : nullptr;
}

Result<AddressSpace> AddressSpace::of_process(pid_t pid, ModuleCache& modules) {
  auto maps = read_maps(pid);
  if (!maps) return Error{maps.error()};
  if (maps->empty()) {
    return Error{"process " + std::to_string(pid) + ": has no memory (it has ended, or is a kernel thread)"};
  }
  AddressSpace space;
  for (const MapsEntry& entry : *maps) space.map(mapping_from_maps(pid, *maps, entry, modules));
  return space;
}

}  // namespace clew::process
