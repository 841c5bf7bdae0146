// Reading this process's own memory without trusting an address: async-signal-safe, no lock, no allocation,
// errno kept.
#pragma once

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace clew::unwind::local {

constexpr uintptr_t kPage = 4096;

/// A system call that leaves errno alone.
inline long system_call(long number, long a, long b, long c, long d, long e = 0, long f = 0) {
  long result;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

/// Whether the 8 bytes at `address` can be read: rt_sigprocmask copies the new mask before it finds that
/// there is no such operation, and says EFAULT where it cannot. Some 0.1 us; no sandbox forbids it. No mask,
/// a null pointer, is none to copy.
inline bool can_read(uintptr_t address) {
  if (address == 0) return false;
  constexpr long kNoSuchOperation = -1, kMaskBytes = 8, kFault = -14;
  return system_call(SYS_rt_sigprocmask, kNoSuchOperation, static_cast<long>(address), 0, kMaskBytes) !=
         kFault;
}

/// Copies memory that may not be there, or may go away meanwhile. Two system calls. The memory is the calling
/// thread's: its process's number is the first thread's, which has none once it has ended.
inline bool copy_memory(uintptr_t address, void* out, size_t size) {
  const iovec local{out, size};
  const iovec remote{reinterpret_cast<void*>(address), size};
  const long tid = system_call(SYS_gettid, 0, 0, 0, 0);
  return system_call(SYS_process_vm_readv, tid, reinterpret_cast<long>(&local), 1,
                     reinterpret_cast<long>(&remote), 1, 0) == static_cast<long>(size);
}

/// Words as they lie in memory, aligned or not.
using Word = uint64_t __attribute__((may_alias, aligned(1)));
using QuarterWord = uint16_t __attribute__((may_alias, aligned(1)));

/// Not for the address sanitizer to judge: what was a return address may lie between variables by now.
[[gnu::no_sanitize_address]] inline uint64_t load(uintptr_t address) {
  return *reinterpret_cast<const Word*>(address);
}
/// The low 16 bits of a word by a load of their own, which the compiler can neither make a cut of a wider one
/// nor put an instruction before.
inline uintptr_t load_quarter(uintptr_t address) {
  uintptr_t value;
  asm("movzwl %1, %k0" : "=r"(value) : "m"(*reinterpret_cast<const QuarterWord*>(address)));
  return value;
}

/// Stack memory that is known to be readable: whole pages without a gap, [low, high).
struct Interval {
  uintptr_t low = 0;
  uintptr_t high = 0;

  bool holds(uintptr_t address) const {  // all 8 bytes
    return address - low < high - low && high - address >= 8;
  }
};

/// The stack as a walk reads it. A page is asked for once; what lies apart from the pages known so far
/// replaces them.
class StackMemory {
 public:
  /// `own`: what is known of the thread's own stack; the walk begins at `sp`.
  StackMemory(Interval own, uintptr_t sp) : own_(own) {
    if (sp - own.low < own.high - own.low) known_ = {sp & ~(kPage - 1), own.high};
  }

  bool read(uintptr_t address, uint64_t* out) {
    if (!known_.holds(address) && !extend(address)) [[unlikely]]
      return false;
    *out = load(address);
    return true;
  }
  const Interval& known() const { return known_; }

  /// Makes the pages of the 8 bytes at `address` known; false where they cannot be read.
  bool extend(uintptr_t address) {
    if (address > UINTPTR_MAX - 2 * kPage) return false;
    if (own_.holds(address)) {
      if (!bridge(own_.low)) known_.low = own_.low;
      known_.high = own_.high;
      return true;
    }
    const uintptr_t first = address & ~(kPage - 1);
    const uintptr_t last = (address + 7) & ~(kPage - 1);
    return add(first, address) && (last == first || add(last, last));
  }

 private:
  bool add(uintptr_t page, uintptr_t address) {
    if (known_.low <= page && page < known_.high) return true;
    // Not past the page's end: the 8 bytes that are asked for are the page's own.
    if (!can_read(address - page > kPage - 8 ? page + kPage - 8 : address)) return false;
    if (page + kPage == known_.low) {
      known_.low = page;
    } else {
      if (!bridge(page)) known_.low = page;
      known_.high = page + kPage;
    }
    if (known_.high == own_.low) known_.high = own_.high;
    return true;
  }

  /// Makes the pages from what is known up to `page` known: a frame of more than a page leaves pages out.
  /// False where they are many, or one cannot be read.
  bool bridge(uintptr_t page) {
    constexpr uintptr_t kFarthest = 64 * kPage;
    if (known_.high == 0 || page - known_.high > kFarthest) return false;
    while (known_.high < page && can_read(known_.high)) known_.high += kPage;
    return known_.high == page;
  }

  Interval own_;
  Interval known_;
};

}  // namespace clew::unwind::local
