#include "elf/decompress.hpp"

#include <algorithm>

#ifndef CLEW_WITHOUT_COMPRESSION
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>
#endif

#include "elf/image_state.hpp"

namespace clew::elf {

#ifndef CLEW_WITHOUT_COMPRESSION
namespace {

// A dictionary of 64 MiB (xz -9) and the decoder itself.
constexpr uint64_t kXzMemoryLimit = 80u << 20;

const uint8_t* octets(const std::byte* bytes) { return reinterpret_cast<const uint8_t*>(bytes); }
uint8_t* octets(std::byte* bytes) { return reinterpret_cast<uint8_t*>(bytes); }

}  // namespace
#endif

uint64_t expansion_limit(uint64_t packed_bytes) {
  if (packed_bytes > kMaxContentBytes / kMaxExpansion) return kMaxContentBytes;
  return std::min(kMaxContentBytes, packed_bytes * kMaxExpansion + kExpansionFloor);
}

#ifdef CLEW_WITHOUT_COMPRESSION
// libclew depends on libc alone. Unwind tables are never compressed; what is, are names of functions without
// them.
bool unzlib(std::span<const std::byte>, std::span<std::byte>) { return false; }
bool unzstd(std::span<const std::byte>, std::span<std::byte>) { return false; }
std::optional<std::vector<std::byte>> unxz(std::span<const std::byte>) { return std::nullopt; }
#else
bool unzlib(std::span<const std::byte> packed, std::span<std::byte> out) {
  z_stream stream{};
  if (packed.size() > kMaxContentBytes || out.size() > kMaxContentBytes || inflateInit(&stream) != Z_OK)
    return false;
  stream.next_in =
      const_cast<Bytef*>(octets(packed.data()));  // zlib's interface predates const; it only reads
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = octets(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int status = inflate(&stream, Z_FINISH);
  inflateEnd(&stream);
  return status == Z_STREAM_END && stream.avail_out == 0;
}

bool unzstd(std::span<const std::byte> packed, std::span<std::byte> out) {
  return ZSTD_decompress(out.data(), out.size(), packed.data(), packed.size()) == out.size();
}

std::optional<std::vector<std::byte>> unxz(std::span<const std::byte> packed) {
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&stream, kXzMemoryLimit, 0) != LZMA_OK) return std::nullopt;
  const uint64_t limit = expansion_limit(packed.size());
  std::vector<std::byte> out(std::min<uint64_t>(limit, packed.size() * 4 + 4096));
  stream.next_in = octets(packed.data());
  stream.avail_in = packed.size();
  stream.next_out = octets(out.data());
  stream.avail_out = out.size();
  lzma_ret status = LZMA_OK;
  while (status == LZMA_OK) {
    if (stream.avail_out == 0) {
      const size_t filled = out.size();
      if (filled >= limit) break;
      out.resize(std::min<uint64_t>(limit, filled * 2));
      stream.next_out = octets(out.data()) + filled;
      stream.avail_out = out.size() - filled;
    }
    status = lzma_code(&stream, LZMA_FINISH);
  }
  out.resize(out.size() - stream.avail_out);
  lzma_end(&stream);
  if (status != LZMA_STREAM_END) return std::nullopt;
  return out;
}

#endif

}  // namespace clew::elf
