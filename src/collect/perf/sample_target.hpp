// A sample as the unwinder's target: the registers and the copied piece of stack, and the process's mappings.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "collect/perf/record.hpp"
#include "process/address_space.hpp"
#include "unwind/remote.hpp"

namespace clew::collect::perf {

/// Code bytes by module and page, so that looking behind a return address costs a system call once a page.
/// Not thread-safe; bounded.
class CodeCache {
 public:
  /// Bytes of the file behind `mapping` at the address in memory; false where the file does not hold them.
  bool read(const process::Mapping& mapping, uint64_t address, void* out, size_t size);

 private:
  struct Page {
    uint32_t size = 0;  // bytes that could be read
    std::array<std::byte, 4096> bytes;
  };
  struct Key {
    const process::Module* module;
    uint64_t vaddr;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      return reinterpret_cast<uintptr_t>(key.module) * 0x9e3779b97f4a7c15 ^ key.vaddr >> 12;
    }
  };
  const Page& page(const process::Module& module, uint64_t vaddr);
  std::unordered_map<Key, Page, Hash> pages_;
};

class SampleTarget : public unwind::Target {
 public:
  explicit SampleTarget(CodeCache& code) : code_(code) {}

  /// Points the target at a sample; everything passed must outlive the walk.
  void set(pid_t pid, const process::AddressSpace* space, const Sample& sample);
  /// The sample's registers in DWARF order.
  unwind::Registers registers() const;

  bool read(uint64_t address, void* out, size_t size) override;
  bool find(uint64_t address, unwind::Code& code) override;
  bool read_code(uint64_t address, void* out, size_t size) override;
  clew_end why_unreadable(uint64_t address) override;

  const process::Mapping* mapping(uint64_t address);
  pid_t pid() const { return pid_; }
  /// How far above the stack pointer the walk has read, bytes: what a copy must hold.
  uint64_t depth() const { return depth_; }
  uint64_t sp() const { return sp_; }

 private:
  CodeCache& code_;
  pid_t pid_ = 0;
  const process::AddressSpace* space_ = nullptr;
  Sample sample_ = {};
  uint64_t sp_ = 0;
  uint64_t depth_ = 0;
  std::array<const process::Mapping*, 4> recent_ = {};  // mappings that addresses were found in
  size_t next_recent_ = 0;
};

/// The stack pointer among perf's registers.
inline constexpr size_t kStackPointerIndex = 7;
/// From perf's order of registers to DWARF's, and back.
unwind::Registers to_registers(std::span<const uint64_t, kUserRegisterCount> values);
std::array<uint64_t, kUserRegisterCount> from_registers(std::span<const uint64_t, CLEW_REGISTERS> values);

}  // namespace clew::collect::perf
