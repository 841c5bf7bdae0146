// A ring's data area made by hand, as the kernel would fill it (layouts: <linux/perf_event.h>).
#pragma once

#include <linux/perf_event.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace clew::tests {

/// Bytes of one record, appended field by field.
class RecordBytes {
 public:
  RecordBytes(uint32_t type, uint16_t misc = 0) {
    add<uint32_t>(type);
    add<uint16_t>(misc);
    add<uint16_t>(0);
  }
  template <class T>
  RecordBytes& add(T value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
    return *this;
  }
  /// NUL-terminated, padded to 8 bytes as the kernel does.
  RecordBytes& text(const std::string& text) {
    for (const char c : text) bytes_.push_back(static_cast<std::byte>(c));
    do bytes_.push_back(std::byte{0});
    while (bytes_.size() % 8 != 0);
    return *this;
  }
  RecordBytes& bytes(const std::vector<std::byte>& more) {
    bytes_.insert(bytes_.end(), more.begin(), more.end());
    return *this;
  }
  /// sample_id as clew asks for it: pid, tid, time, identifier.
  RecordBytes& trailer(uint32_t pid, uint32_t tid, uint64_t time_ns) {
    return add<uint32_t>(pid).add<uint32_t>(tid).add<uint64_t>(time_ns).add<uint64_t>(7);
  }
  std::vector<std::byte> done() const {
    std::vector<std::byte> out = bytes_;
    const auto size = static_cast<uint16_t>(out.size());
    std::memcpy(out.data() + 6, &size, sizeof size);
    return out;
  }

 private:
  std::vector<std::byte> bytes_;
};

struct SyntheticSample {
  uint64_t ip = 0x401000;
  uint32_t pid = 10, tid = 11;
  uint64_t time_ns = 1000, period = 1'001'001;
  std::vector<uint64_t> chain;
  bool with_chain = false;
  uint64_t abi = PERF_SAMPLE_REGS_ABI_64;
  uint64_t asked = 64;
  uint64_t copied = 24;
};

inline std::vector<std::byte> sample_bytes(const SyntheticSample& sample) {
  RecordBytes record(PERF_RECORD_SAMPLE, PERF_RECORD_MISC_USER);
  record.add<uint64_t>(7)
      .add(sample.ip)
      .add(sample.pid)
      .add(sample.tid)
      .add(sample.time_ns)
      .add(sample.period);
  if (sample.with_chain) {
    record.add<uint64_t>(sample.chain.size());
    for (const uint64_t address : sample.chain) record.add(address);
  }
  record.add(sample.abi);
  if (sample.abi != 0) {
    for (uint64_t i = 0; i < 17; ++i) record.add<uint64_t>(0x1000 + i);
  }
  record.add(sample.asked);
  if (sample.asked != 0) {
    std::vector<std::byte> stack(sample.asked);
    for (size_t i = 0; i < stack.size(); ++i) stack[i] = static_cast<std::byte>(i);
    record.bytes(stack).add(sample.copied);
  }
  return record.done();
}

/// A ring whose next record is written at `position`, so that it wraps wherever a test wants.
class SyntheticRing {
 public:
  SyntheticRing(size_t size, uint64_t position) : data_(size), tail_(position), head_(position) {}
  void write(const std::vector<std::byte>& bytes) {
    for (const std::byte byte : bytes) data_[head_++ & (data_.size() - 1)] = byte;
  }
  const std::vector<std::byte>& data() const { return data_; }
  uint64_t tail() const { return tail_; }
  uint64_t head() const { return head_; }

 private:
  std::vector<std::byte> data_;
  uint64_t tail_, head_;
};

}  // namespace clew::tests
