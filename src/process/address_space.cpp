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

void AddressSpace::unmap(uint64_t start, uint64_t end) {
  if (end <= start) return;
  auto next = by_start_.lower_bound(start);
  if (next != by_start_.begin()) {
    Mapping& before = std::prev(next)->second;
    if (before.end > end) by_start_.emplace(end, tail_of(before, end));
    before.end = std::min(before.end, start);
  }
  while (next != by_start_.end() && next->first < end) {
    if (next->second.end > end) by_start_.emplace(end, tail_of(next->second, end));
    next = by_start_.erase(next);
  }
}

void AddressSpace::map(Mapping mapping) {
  if (mapping.end <= mapping.start) return;
  unmap(mapping.start, mapping.end);
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

bool find_code(const AddressSpace& space, uint64_t address, unwind::Code& code) {
  const Mapping* mapping = space.find(address);
  if (!mapping) return false;
  code.start = mapping->start;
  code.end = mapping->end;
  code.executable = mapping->executable;
  code.bias = mapping->bias;
  code.table = mapping->module ? mapping->module->table.get() : nullptr;
  return true;
}

}  // namespace clew::process
