// From functions and their rows to the bytes of core/table.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "table/dictionary.hpp"

namespace clew::table {

/// A row of a program: from `offset` behind the function's start on, rule number `rule` holds.
struct ProgramRow {
  uint32_t offset;
  uint16_t rule;
};

/// A sequence of rows that starts at offset 0, in the arena that all programs share. Functions of equal CFI
/// have one.
struct Program {
  uint32_t first;  // index into the arena
  uint32_t count;  // at least 1
};

/// A piece of text [start, end) that a program describes from its offset `skip` on.
struct Piece {
  uint64_t start;
  uint64_t end;
  uint32_t program;
  uint32_t skip;
};

struct Programs {
  std::vector<ProgramRow> rows;
  std::vector<Program> programs;
};

/// What identifies the file that the table is of, for the header.
struct Identity {
  std::span<const std::byte> build_id;
  uint64_t file_bytes;
  uint64_t source_hash;
};

/// Encodes pieces (ascending, disjoint, touching: program 0, which is that of addresses that nothing
/// describes, fills what lies between) into a table. The span from the first piece's start to the last one's
/// end must be below 4 GiB. `functions` goes into the header for `table stats`.
std::vector<std::byte> encode(const Programs& programs, std::span<const Piece> pieces,
                              const Dictionary& dictionary, const Identity& identity, uint32_t functions);

}  // namespace clew::table
