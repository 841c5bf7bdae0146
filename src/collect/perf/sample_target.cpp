#include "collect/perf/sample_target.hpp"

#include <algorithm>
#include <cstring>

#include "process/process.hpp"

namespace clew::collect::perf {

namespace {

constexpr size_t kMostPages = 4096;  // 16 MiB of code
constexpr uint64_t kPage = 4096;

// Where perf's nth register (kUserRegisters: ax bx cx dx si di bp sp ip r8 .. r15) goes.
constexpr std::array<uint8_t, kUserRegisterCount> kDwarf = {
    CLEW_RAX, CLEW_RBX, CLEW_RCX, CLEW_RDX, CLEW_RSI, CLEW_RDI, CLEW_RBP, CLEW_RSP, CLEW_RIP,
    CLEW_R8,  CLEW_R9,  CLEW_R10, CLEW_R11, CLEW_R12, CLEW_R13, CLEW_R14, CLEW_R15};

// How far above the copy an address still counts as the same stack.
constexpr uint64_t kNearBytes = 8 << 20;

}  // namespace

unwind::Registers to_registers(std::span<const uint64_t, kUserRegisterCount> values) {
  unwind::Registers registers;
  for (size_t i = 0; i < values.size(); ++i) registers.value[kDwarf[i]] = values[i];
  registers.known = (1u << CLEW_REGISTERS) - 1;
  return registers;
}

std::array<uint64_t, kUserRegisterCount> from_registers(std::span<const uint64_t, CLEW_REGISTERS> values) {
  std::array<uint64_t, kUserRegisterCount> registers;
  for (size_t i = 0; i < registers.size(); ++i) registers[i] = values[kDwarf[i]];
  return registers;
}

const CodeCache::Page& CodeCache::page(const process::Module& module, uint64_t vaddr) {
  const Key key = {&module, vaddr};
  if (const auto found = pages_.find(key); found != pages_.end()) return found->second;
  if (pages_.size() >= kMostPages) pages_.clear();
  Page& page = pages_[key];
  page.size = static_cast<uint32_t>(module.image->read(vaddr, page.bytes));
  return page;
}

bool CodeCache::read(const process::Mapping& mapping, uint64_t address, void* out, size_t size) {
  if (!mapping.module || !mapping.module->image) return false;
  auto* to = static_cast<std::byte*>(out);
  uint64_t vaddr = address - mapping.bias;
  while (size != 0) {
    const uint64_t in_page = vaddr % kPage;
    const size_t part = std::min<size_t>(size, kPage - in_page);
    const Page& from = page(*mapping.module, vaddr - in_page);
    if (in_page + part > from.size) return false;
    std::memcpy(to, from.bytes.data() + in_page, part);
    to += part;
    vaddr += part;
    size -= part;
  }
  return true;
}

void SampleTarget::set(pid_t pid, const process::AddressSpace* space, const Sample& sample) {
  pid_ = pid;
  space_ = space;
  sample_ = sample;
  sp_ = sample.head.registers[kStackPointerIndex];
  depth_ = 0;
  recent_ = {};
}

unwind::Registers SampleTarget::registers() const { return to_registers(sample_.head.registers); }

bool SampleTarget::read(uint64_t address, void* out, size_t size) {
  const uint64_t offset = address - sp_;
  if (address < sp_ || offset > sample_.stack.size() || size > sample_.stack.size() - offset) return false;
  std::memcpy(out, sample_.stack.data() + offset, size);
  depth_ = std::max(depth_, offset + size);
  return true;
}

const process::Mapping* SampleTarget::mapping(uint64_t address) {
  for (const process::Mapping* known : recent_) {
    if (known != nullptr && address >= known->start && address < known->end) return known;
  }
  const process::Mapping* found = space_ != nullptr ? space_->find(address) : nullptr;
  if (found != nullptr) recent_[next_recent_++ % recent_.size()] = found;
  return found;
}

bool SampleTarget::find(uint64_t address, unwind::Code& code) {
  const process::Mapping* found = mapping(address);
  if (found == nullptr) return false;
  code.start = found->start;
  code.end = found->end;
  code.executable = found->executable;
  code.bias = found->bias;
  code.table = found->module ? found->module->table.get() : nullptr;
  return true;
}

bool SampleTarget::read_code(uint64_t address, void* out, size_t size) {
  const process::Mapping* found = mapping(address);
  if (found == nullptr || address + size < address || address + size > found->end) return false;
  if (code_.read(*found, address, out, size)) return true;
  return process::read_memory(pid_, address, std::span(static_cast<std::byte*>(out), size)) == size;
}

clew_end SampleTarget::why_unreadable(uint64_t address) {
  if (address < sp_) return CLEW_END_OTHER_STACK;
  return address < sp_ + sample_.stack.size() + kNearBytes ? CLEW_END_STACK_CUT : CLEW_END_OTHER_STACK;
}

}  // namespace clew::collect::perf
