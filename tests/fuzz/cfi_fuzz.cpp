// Sections of CFI: the first byte says which kind (bit 0 .debug_frame, bit 1 AArch64), the rest is the
// section.
#include <cstdint>
#include <vector>

#include "cfi/exercise.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  // Copied, so that the sanitizer sees a read past the section's end.
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> bytes(begin + 1, begin + size);
  clew::cfi::Section section;
  section.bytes = bytes;
  section.address = 0x400000;
  section.text_base = 0x10000;
  section.data_base = 0x20000;
  section.debug_frame = (data[0] & 1) != 0;
  if ((data[0] & 2) != 0) {
    clew::cfi::test::exercise<clew::cfi::Aarch64>(section);
  } else {
    clew::cfi::test::exercise(section);
  }
  return 0;
}
