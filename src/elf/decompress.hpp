// zlib, zstd and xz streams to bytes, bounded in memory whatever they claim. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace clew::elf {

/// How many bytes a compressed piece may become: 1 GiB, and 200 times its size (beyond the first 64 KiB).
uint64_t expansion_limit(uint64_t packed_bytes);

/// True where the stream decodes to exactly out.size() bytes.
bool unzlib(std::span<const std::byte> packed, std::span<std::byte> out);
bool unzstd(std::span<const std::byte> packed, std::span<std::byte> out);

/// A whole .xz stream (its size is in its index, which is not trusted); nothing where it is damaged or too
/// large.
std::optional<std::vector<std::byte>> unxz(std::span<const std::byte> packed);

}  // namespace clew::elf
