#include "collect/perf/stopped_target.hpp"

#include <algorithm>
#include <cstring>

#include "process/process.hpp"

namespace clew::collect::perf {

namespace {
constexpr size_t kMostBlocks = 4096;  // 16 MiB of stack; beyond that the last block is read again and again
}

void StoppedTarget::set_thread(pid_t pid, const process::AddressSpace* space, uint64_t sp) {
  Sample sample = {};
  sample.head.registers[kStackPointerIndex] = sp;
  set(pid, space, sample);
  used_ = 0;
  last_ = 0;
  outside_ = restricted_ = false;
}

const StoppedTarget::Block& StoppedTarget::block(uint64_t address) {
  if (last_ < used_ && blocks_[last_].address == address) return blocks_[last_];
  for (size_t i = used_; i-- > 0;) {
    if (blocks_[i].address == address) return blocks_[last_ = i];
  }
  if (used_ < kMostBlocks) ++used_;
  if (blocks_.size() < used_) blocks_.emplace_back();
  last_ = used_ - 1;
  Block& block = blocks_[last_];
  block.address = address;
  block.size = process::read_memory(pid(), address, block.bytes);
  return block;
}

bool StoppedTarget::read(uint64_t address, void* out, size_t size) {
  if (address < sp() || address - sp() > kStackSizes.back() - size) {
    outside_ = true;
    if (restricted_) return false;
  }
  auto* to = static_cast<std::byte*>(out);
  while (size != 0) {
    const uint64_t in_block = address % kBlockBytes;
    const size_t part = std::min<size_t>(size, kBlockBytes - in_block);
    const Block& from = block(address - in_block);
    if (in_block + part > from.size) return false;
    std::memcpy(to, from.bytes.data() + in_block, part);
    to += part;
    address += part;
    size -= part;
  }
  return true;
}

}  // namespace clew::collect::perf
