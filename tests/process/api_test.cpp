// The remote interface of the library: a child with a chain that is known because each of its functions wrote
// down where it returns to and its CFA, unwound by a reader, from copies, and from everything that can be
// wrong.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "clew/remote.hpp"
#include "process/process.hpp"

namespace clew::test {
namespace {

constexpr size_t kLevels = 40;
constexpr uint64_t kMagic = 0x5ca1ab1e0ddba11;
constexpr unsigned kRbx = 3, kRsp = 7, kRip = 16;

/// What the child's functions wrote down, innermost first.
struct Chain {
  uintptr_t return_address[kLevels];
  uintptr_t cfa[kLevels];
};

[[gnu::noipa]] void descend(Chain& chain, size_t level) {
  chain.return_address[level] = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  chain.cfa[level] = reinterpret_cast<uintptr_t>(__builtin_dwarf_cfa());
  if (level == 0)
    raise(SIGSTOP);
  else
    descend(chain, level - 1);
  asm volatile("" ::: "rbx", "r12", "memory");  // saves them, and does not end in a jump
}

/// Calls with a known value in a register that callees must keep.
[[gnu::noipa]] void with_magic(Chain& chain) {
  register uint64_t magic asm("rbx") = kMagic;
  asm volatile("" : "+r"(magic));
  descend(chain, kLevels - 1);
  asm volatile("" ::"r"(magic));
}

/// A stopped child in the midst of that chain.
class Child {
 public:
  Child() {
    chain_ = static_cast<Chain*>(
        mmap(nullptr, sizeof *chain_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pid_ = fork();
    if (pid_ == 0) {
      ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      with_magic(*chain_);
      _exit(0);
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    user_regs_struct r{};
    EXPECT_EQ(ptrace(PTRACE_GETREGS, pid_, nullptr, &r), 0);
    registers_ = {{r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12,
                   r.r13, r.r14, r.r15, r.rip},
                  (1u << 17) - 1};
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    munmap(chain_, sizeof *chain_);
  }

  int pid() const { return pid_; }
  const Chain& chain() const { return *chain_; }
  const Registers& registers() const { return registers_; }
  size_t read(uint64_t address, void* out, size_t size) const {
    const iovec local{out, size}, remote{reinterpret_cast<void*>(address), size};
    const ssize_t got = process_vm_readv(pid_, &local, 1, &remote, 1, 0);
    return got < 0 ? 0 : static_cast<size_t>(got);
  }
  auto reader() const {
    return [this](uint64_t address, void* out, size_t size) { return read(address, out, size); };
  }
  /// A copy of its stack from the stack pointer of a frame on.
  std::vector<std::byte> stack_from(uint64_t sp, size_t size) const {
    std::vector<std::byte> bytes(size);
    size_t done = 0;
    while (done < size && read(sp + done, bytes.data() + done, 8) == 8) done += 8;
    bytes.resize(done);
    return bytes;
  }

 private:
  Chain* chain_;
  int pid_;
  Registers registers_;
};

/// Checks that the chain is in the frames, whole and in place; returns the number of its innermost frame.
size_t expect_chain(const Chain& chain, std::span<const Frame> frames) {
  const auto first = std::ranges::find(frames, chain.return_address[0], &Frame::pc);
  const auto at = static_cast<size_t>(first - frames.begin());
  EXPECT_LT(at + kLevels, frames.size());
  for (size_t i = 0; i < kLevels && at + i < frames.size(); ++i) {
    EXPECT_EQ(frames[at + i].pc, chain.return_address[i]) << i;
    EXPECT_EQ(frames[at + i].sp, chain.cfa[i]) << i;
    EXPECT_EQ(frames[at + i].how, static_cast<uint32_t>(CLEW_HOW_TABLE)) << i;
  }
  return at;
}

std::vector<Frame> frames_of(const Space& space, const Child& child, Trace* how = nullptr) {
  std::vector<Frame> frames(256);
  const Trace trace = space.unwind(child.registers(), child.reader(), frames);
  if (how) *how = trace;
  frames.resize(trace.frames);
  return frames;
}

std::vector<uint64_t> pcs_of(std::span<const Frame> frames) {
  std::vector<uint64_t> pcs;
  for (const Frame& frame : frames) pcs.push_back(frame.pc);
  return pcs;
}

clew_sample sample_of(const Registers& registers, const std::vector<std::byte>& stack) {
  return {registers, stack.data(), registers.value[kRsp], stack.size()};
}

std::vector<char> contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST(Space, AProcessByItsMapsAndAReader) {
  const Child child;
  Space space;
  ASSERT_TRUE(space.set_process(child.pid())) << space.error();
  Trace trace;
  const auto frames = frames_of(space, child, &trace);
  EXPECT_EQ(trace.end, static_cast<uint32_t>(CLEW_END_ROOT)) << clew_end_name(trace.end);
  EXPECT_EQ(frames.front().pc, child.registers().value[kRip]);
  EXPECT_EQ(frames.front().flags & CLEW_FRAME_EXACT_PC, static_cast<uint32_t>(CLEW_FRAME_EXACT_PC));
  expect_chain(child.chain(), frames);
}

TEST(Space, RegistersOfEachFrame) {
  const Child child;
  Space space;
  ASSERT_TRUE(space.set_process(child.pid()));
  std::vector<Frame> frames(256);
  std::vector<Registers> registers(256);
  const Trace trace = space.unwind(child.registers(), child.reader(), frames, registers);
  frames.resize(trace.frames);
  for (size_t i = 0; i < frames.size(); ++i) {
    ASSERT_EQ(registers[i].known >> kRip & registers[i].known >> kRsp & 1, 1u) << i;
    EXPECT_EQ(registers[i].value[kRip], frames[i].pc);
    EXPECT_EQ(registers[i].value[kRsp], frames[i].sp);
  }
  const size_t caller = expect_chain(child.chain(), frames) + kLevels - 1;
  ASSERT_LT(caller, frames.size());
  EXPECT_EQ(registers[caller].known >> kRbx & 1, 1u);
  EXPECT_EQ(registers[caller].value[kRbx], kMagic);
  EXPECT_EQ(registers[caller].known & 1u, 0u) << "rax is the callee's to change: nobody knows it";
}

TEST(Space, ModulesByHand) {
  const Child child;
  Space by_path, by_contents;
  const auto maps = process::read_maps(child.pid());
  ASSERT_TRUE(maps);
  for (const process::MapsEntry& entry : *maps) {
    if (!entry.executable || !process::is_file_mapping(entry)) continue;
    clew_mapping mapping{entry.start, entry.end - entry.start, entry.offset, entry.path.c_str(), nullptr, 0};
    ASSERT_TRUE(by_path.add(mapping)) << by_path.error();
    const std::vector<char> contents = contents_of(entry.path);
    mapping.path = nullptr;
    mapping.bytes = contents.data();
    mapping.bytes_size = contents.size();
    ASSERT_TRUE(by_contents.add(mapping)) << by_contents.error();
  }
  Trace trace;
  for (const Space* space : {&by_path, &by_contents}) {
    expect_chain(child.chain(), frames_of(*space, child, &trace));
    EXPECT_EQ(trace.end, static_cast<uint32_t>(CLEW_END_ROOT)) << clew_end_name(trace.end);
  }
  // Without the page that a frame returns to, the trace ends there.
  const uint64_t gone = child.chain().return_address[3];
  by_path.remove(gone & ~uint64_t{4095}, 4096);
  const auto frames = frames_of(by_path, child, &trace);
  EXPECT_EQ(trace.end, static_cast<uint32_t>(CLEW_END_NOT_MAPPED));
  EXPECT_EQ(trace.detail >> 12, gone >> 12);
}

TEST(Space, CodeThatNothingDescribesIsFollowedByItsInstructions) {
  // push rbp; mov rbp, rsp; call; a frame-pointer chain that ends in code that is not mapped.
  const uint8_t code[] = {0x55, 0x48, 0x89, 0xe5, 0xe8, 0, 0, 0, 0, 0x90, 0x5d, 0xc3};
  constexpr uint64_t kCode = 0x10000, kStack = 0x20000;
  const uint64_t stack[] = {kStack + 16, kCode + 9, 0, 0x666};
  const auto read = [&](uint64_t address, void* out, size_t size) -> size_t {
    const auto copy = [&](uint64_t start, const void* from, size_t bytes) -> size_t {
      if (address < start || address - start > bytes || size > bytes - (address - start)) return 0;
      std::memcpy(out, static_cast<const char*>(from) + (address - start), size);
      return size;
    };
    return copy(kCode, code, sizeof code) + copy(kStack, stack, sizeof stack);
  };
  Space space;
  ASSERT_TRUE(space.add({kCode, sizeof code, 0, nullptr, nullptr, 0})) << space.error();
  Registers registers{};
  registers.value[6] = kStack;
  registers.value[kRsp] = kStack;
  registers.value[kRip] = kCode + 9;
  registers.known = 1u << 6 | 1u << kRsp | 1u << kRip;
  std::vector<Frame> frames(8);
  const Trace trace = space.unwind(registers, read, frames);
  EXPECT_EQ(trace.end, static_cast<uint32_t>(CLEW_END_NOT_MAPPED));
  EXPECT_EQ(trace.detail, 0x666u);
  ASSERT_EQ(trace.frames, 2u);
  EXPECT_EQ(frames[1].pc, kCode + 9);
  EXPECT_EQ(frames[1].sp, kStack + 16);
}

TEST(Space, SamplesInOneCall) {
  const Child child;
  Space space;
  ASSERT_TRUE(space.set_process(child.pid()));
  // Sampled at every frame of the chain, as it were: each has the rest of the chain, whole or cut.
  std::vector<Frame> whole(256);
  std::vector<Registers> registers(256);
  whole.resize(space.unwind(child.registers(), child.reader(), whole, registers).frames);
  const auto pcs = pcs_of(whole);
  std::vector<size_t> starts(whole.size());
  for (size_t i = 0; i < starts.size(); ++i) starts[i] = i;
  std::shuffle(starts.begin(), starts.end(), std::mt19937(1));
  std::vector<std::vector<std::byte>> stacks;
  std::vector<Sample> samples;
  for (const size_t start : starts) {
    // Every third is cut where the chain's twentieth frame begins.
    const uint64_t sp = whole[start].sp, cut = child.chain().cfa[20];
    stacks.push_back(child.stack_from(sp, start % 3 == 0 && sp < cut ? cut - sp : 1 << 16));
    samples.push_back(sample_of(registers[start], stacks.back()));
  }
  std::vector<Frame> frames(samples.size() * 256);
  std::vector<Trace> traces(samples.size());
  ASSERT_EQ(space.unwind_batch(samples, 256, frames, traces), samples.size());
  size_t at = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const size_t start = starts[i];
    const auto got = pcs_of({frames.data() + at, traces[i].frames});
    at += traces[i].frames;
    ASSERT_LE(got.size(), pcs.size() - start);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), pcs.begin() + static_cast<ptrdiff_t>(start))) << start;
    if (start % 3 == 0 && whole[start].sp < child.chain().cfa[20]) {
      EXPECT_EQ(traces[i].end, static_cast<uint32_t>(CLEW_END_STACK_CUT)) << clew_end_name(traces[i].end);
      EXPECT_EQ(got.back(), child.chain().return_address[20]);
    } else {
      EXPECT_EQ(traces[i].end, static_cast<uint32_t>(CLEW_END_ROOT)) << clew_end_name(traces[i].end);
    }
  }
  // Room for some: the rest is for the next call.
  std::vector<Frame> little(100);
  size_t done = 0;
  while (done < samples.size()) {
    const size_t now =
        space.unwind_batch(std::span(samples).subspan(done), 60, little, std::span(traces).subspan(done));
    ASSERT_GE(now, 1u);
    done += now;
  }
}

TEST(Space, AnotherStackIsNoCut) {
  const Child child;
  Space space;
  ASSERT_TRUE(space.set_process(child.pid()));
  const auto stack = child.stack_from(child.registers().value[kRsp], 4096);
  Sample sample = sample_of(child.registers(), stack);
  sample.stack_address += uint64_t{1} << 30;
  std::vector<Frame> frames(16);
  Trace trace{};
  ASSERT_EQ(space.unwind_batch({&sample, 1}, 16, frames, {&trace, 1}), 1u);
  EXPECT_EQ(trace.frames, 1u);
  EXPECT_EQ(trace.end, static_cast<uint32_t>(CLEW_END_OTHER_STACK));
}

TEST(Space, SharedModulesAreOpenedOnce) {
  const Child child;
  Space first;
  const size_t before = open_descriptors();
  ASSERT_TRUE(first.set_process(child.pid()));
  const size_t with_first = open_descriptors();
  EXPECT_GT(with_first, before);
  Space second = Space::sharing(first);
  ASSERT_TRUE(second.set_process(child.pid()));
  ASSERT_TRUE(second.set_process(child.pid())) << "again, as after dlopen";
  EXPECT_EQ(open_descriptors(), with_first);
  first = Space();  // frees it; the other keeps what it shares
  expect_chain(child.chain(), frames_of(second, child));
}

TEST(Space, ManyThreadsInOneSpace) {
  const Child child;
  Space space;
  ASSERT_TRUE(space.set_process(child.pid()));
  const auto expected = pcs_of(frames_of(space, child));
  const auto stack = child.stack_from(child.registers().value[kRsp], 1 << 16);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      std::vector<Frame> frames(256);
      const Sample sample = sample_of(child.registers(), stack);
      for (int i = 0; i < 200; ++i) {
        Trace trace{};
        space.unwind_batch({&sample, 1}, 256, frames, {&trace, 1});
        if (pcs_of({frames.data(), trace.frames}) != expected) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Space, ReadersThatFailOrLie) {
  const Child child;
  Space space;
  ASSERT_TRUE(space.set_process(child.pid()));
  std::vector<Frame> frames(64);
  for (const size_t says : {size_t{0}, size_t{3}, SIZE_MAX}) {
    const auto read = [says](uint64_t, void*, size_t) { return says; };
    const Trace trace = space.unwind(child.registers(), read, frames);
    EXPECT_EQ(trace.frames, 1u);
    EXPECT_EQ(trace.end, static_cast<uint32_t>(CLEW_END_UNREADABLE));
  }
  // Anything at all: words of the stack and of code, turned this way and that.
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    const auto read = [&](uint64_t, void* out, size_t size) {
      for (size_t i = 0; i < size; i += 8) {
        const uint64_t words[] = {random(), child.chain().return_address[random() % kLevels],
                                  child.chain().cfa[random() % kLevels] + random() % 64};
        std::memcpy(static_cast<char*>(out) + i, &words[random() % 3], std::min<size_t>(8, size - i));
      }
      return size;
    };
    Registers registers = child.registers();
    registers.value[kRip] = child.chain().return_address[random() % kLevels];
    registers.known = static_cast<uint32_t>(random()) | 1u << kRip | 1u << kRsp;
    const Trace trace = space.unwind(registers, read, frames);
    EXPECT_LE(trace.frames, frames.size());
    EXPECT_LT(trace.end, static_cast<uint32_t>(CLEW_END_COUNT));
  }
}

TEST(Space, NothingToWriteTo) {
  const Child child;
  Space space;
  ASSERT_TRUE(space.set_process(child.pid()));
  EXPECT_EQ(space.unwind(child.registers(), child.reader(), {}).frames, 0u);
  Sample sample{child.registers(), nullptr, child.registers().value[kRsp], 0};
  std::vector<Frame> frames(4);
  Trace trace{};
  EXPECT_EQ(space.unwind_batch({}, 4, frames, {}), 0u);
  EXPECT_EQ(space.unwind_batch({&sample, 1}, 4, {}, {&trace, 1}), 0u);
  EXPECT_EQ(space.unwind_batch({&sample, 1}, 5, frames, {&trace, 1}), 0u);
  EXPECT_EQ(space.unwind_batch({&sample, 1}, 0, {}, {&trace, 1}), 1u);
  EXPECT_EQ(trace.end, static_cast<uint32_t>(CLEW_END_DEPTH_LIMIT));
  EXPECT_EQ(space.unwind_batch({&sample, 1}, 4, frames, {&trace, 1}), 1u);
  EXPECT_EQ(trace.end, static_cast<uint32_t>(CLEW_END_STACK_CUT));
  EXPECT_EQ(trace.frames, 1u);
  sample.registers.known = 0;
  EXPECT_EQ(space.unwind_batch({&sample, 1}, 4, frames, {&trace, 1}), 1u);
  EXPECT_EQ(trace.frames, 0u);
  EXPECT_EQ(trace.end, static_cast<uint32_t>(CLEW_END_NO_USER_STACK));
}

TEST(Space, WhatCannotBeAddedSaysWhyAndChangesNothing) {
  const Child child;
  Space space;
  ASSERT_TRUE(space.set_process(child.pid()));
  EXPECT_STREQ(space.error(), "");
  const auto before = pcs_of(frames_of(space, child));
  const char* const program = "/proc/self/exe";
  const uint64_t at = child.chain().return_address[0] & ~uint64_t{4095};
  const auto refused = [&](const clew_mapping& mapping, const std::string& says) {
    EXPECT_FALSE(space.add(mapping)) << says;
    EXPECT_NE(std::string(space.error()).find(says), std::string::npos) << space.error();
  };
  refused({at, 4096, 0, "/nowhere/at/all", nullptr, 0}, "/nowhere/at/all");
  refused({at, 4096, 0, "/etc/passwd", nullptr, 0}, "/etc/passwd");
  refused({at, 4096, 0, "/dev", nullptr, 0}, "/dev");
  refused({at, 4096, 0, nullptr, "no ELF file", 11}, "");
  refused({at, 4096, 0, nullptr, "", 0}, "");
  refused({at, 0, 0, program, nullptr, 0}, "size");
  refused({UINT64_MAX - 4095, 8192, 0, program, nullptr, 0}, "size");
  EXPECT_FALSE(space.set_process(0x7fffffff));
  EXPECT_NE(std::string(space.error()).find("no such process"), std::string::npos) << space.error();
  EXPECT_EQ(pcs_of(frames_of(space, child)), before);
}

TEST(Space, DamagedModules) {
  // The dynamic linker's file, cut and with bytes changed, where the child's chain runs: no crash, no hang.
  const Child child;
  const auto sound = contents_of("/lib64/ld-linux-x86-64.so.2");
  ASSERT_GT(sound.size(), 10000u);
  const auto stack = child.stack_from(child.registers().value[kRsp], 1 << 14);
  const Sample sample = sample_of(child.registers(), stack);
  std::vector<Frame> frames(64);
  std::mt19937 random(1);
  for (int round = 0; round < 150; ++round) {
    auto bytes = sound;
    if (round % 3 == 0) bytes.resize(random() % bytes.size());
    for (int i = 0; i < round; ++i)  // in the headers most
      if (!bytes.empty())
        bytes[random() % (i % 2 ? bytes.size() : std::min<size_t>(1024, bytes.size()))] ^= 1 << random() % 8;
    Space space;
    const clew_mapping mapping{child.registers().value[kRip] & ~uint64_t{0xfffff},
                               0x200000,
                               random() % 0x40000,
                               nullptr,
                               bytes.data(),
                               bytes.size()};
    (void)space.add(mapping);
    Trace trace{};
    ASSERT_EQ(space.unwind_batch({&sample, 1}, 64, frames, {&trace, 1}), 1u);
    EXPECT_GE(trace.frames, 1u);
  }
}

}  // namespace
}  // namespace clew::test
