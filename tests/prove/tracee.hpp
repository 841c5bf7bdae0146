// The stopped program: its memory, its code, and what is mapped where.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "clew/result.hpp"
#include "process/address_space.hpp"
#include "prove/instruction.hpp"
#include "prove/shadow.hpp"
#include "unwind/remote.hpp"

namespace clew::prove {

class Tracee : public unwind::Target, public Program {
 public:
  explicit Tracee(pid_t pid);

  /// The program goes on: what was read of its memory no longer holds.
  void moved() { ++moment_; }
  /// Mappings have changed. They are read again when they are needed: at once if code is concerned.
  void remapped(bool code);
  /// Reads the mappings again if they changed since; returns whether it did.
  bool refresh();
  /// How often mappings of code have been read.
  uint64_t maps_read() const { return maps_read_; }

  /// The instruction at `pc`; nothing where there is none.
  std::optional<Instruction> instruction_at(uint64_t pc);
  /// How many distinct addresses instructions were executed at.
  uint64_t executed_addresses() const { return executed_.size(); }
  /// The instruction was executed.
  void executed(uint64_t pc, const Instruction& instruction) { executed_.insert_or_assign(pc, instruction); }
  /// The executed instruction that ends at `pc`.
  std::optional<uint64_t> executed_before(uint64_t pc) const;
  const process::Mapping* mapping_at(uint64_t address) const { return space_.find(address); }
  pid_t pid() const { return pid_; }

  bool read(uint64_t address, void* out, size_t size) override;
  bool find(uint64_t address, unwind::Code& code) override;
  bool read_word(uint64_t address, uint64_t& word) override { return read(address, &word, sizeof word); }
  bool is_code(uint64_t address) override;
  /// Whether code was mapped in [start, end) when the mappings were read.
  bool had_code(uint64_t start, uint64_t end) const;

 private:
  static constexpr size_t kPageBytes = 4096;
  static constexpr size_t kPages = 256;
  struct Page {
    uint64_t address = UINT64_MAX;
    uint64_t moment = 0;
    size_t readable = 0;  // bytes from its start
    std::array<std::byte, kPageBytes> bytes;
  };
  const Page& page_at(uint64_t address);
  bool is_writable_code(uint64_t address) const;

  pid_t pid_;
  uint64_t moment_ = 1;
  uint64_t maps_read_ = 0;
  bool code_remapped_ = true, data_remapped_ = false;
  process::ModuleCache modules_;
  process::AddressSpace space_;
  std::vector<std::pair<uint64_t, uint64_t>> writable_code_;
  std::unordered_map<uint64_t, Instruction> decoded_;   // of code that is not writable
  std::unordered_map<uint64_t, Instruction> executed_;  // as it was last
  std::unique_ptr<std::array<Page, kPages>> pages_;
};

}  // namespace clew::prove
