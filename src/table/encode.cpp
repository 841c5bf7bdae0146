#include "table/encode.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>

#include "core/table.h"
#include "table/table.hpp"

namespace clew::table {
namespace {

constexpr uint64_t kPage = uint64_t{1} << CLEW_TABLE_PAGE_BITS;

/// Rows [first, last) of the arena as one piece of a page shows them: the part of a program between two
/// offsets.
struct Extract {
  uint32_t first;
  uint32_t count;
  uint32_t skip;  // the extract's first row starts here, whatever its own offset
};

/// A record before its shape is known.
struct Record {
  uint64_t start;
  uint32_t extract;
};

/// A run of a shape under construction: `gap` bytes behind the last row of the run before.
struct Token {
  uint32_t gap;
  uint32_t run;
};

using Run = std::array<uint32_t, CLEW_RUN_ROWS>;  // gap << 16 | rule a row; the first gap is 0

struct RunTable {
  std::vector<Run> runs;
  std::vector<uint8_t> lengths;
  std::vector<uint32_t> uses;
  uint64_t rows = 0;
};

/// How often rule b follows rule a at this distance, over all extracts, a number a pair of neighbouring rows.
/// A distance that recurs (a push, a pop) belongs into a run, one that does not stands between runs. Counted
/// by hash: where two pairs share one, a few runs are cut elsewhere than they might be.
std::vector<uint32_t> count_transitions(const Programs& programs, std::span<const Extract> extracts) {
  const size_t kinds = std::bit_ceil(std::clamp<size_t>(programs.rows.size(), 1 << 12, 1 << 18));
  std::vector<uint32_t> counts(kinds + 1);  // the last one's distance is too long for a run's byte
  std::vector<uint32_t> transition;         // of each row with its successor, in extract order
  transition.reserve(programs.rows.size());
  for (const Extract& extract : extracts) {
    for (uint32_t i = 1; i < extract.count; ++i) {
      const ProgramRow& a = programs.rows[extract.first + i - 1];
      const ProgramRow& b = programs.rows[extract.first + i];
      const uint32_t distance = b.offset - std::max(a.offset, extract.skip);
      const uint64_t key = uint64_t{a.rule} << 32 | uint64_t{b.rule} << 16 | distance;
      const size_t at = distance > UINT8_MAX ? kinds : mix(0, key) & (kinds - 1);
      ++counts[at];
      transition.push_back(static_cast<uint32_t>(at));
    }
  }
  counts[kinds] = 0;
  for (uint32_t& number : transition) number = counts[number];
  return transition;
}

/// Cuts extracts into runs where a transition is rarer than `rare`. tokens[token_at[i]..token_at[i + 1]) are
/// extract i's.
RunTable cut_into_runs(const Programs& programs, std::span<const Extract> extracts,
                       std::span<const uint32_t> transition_counts, uint32_t rare, std::vector<Token>& tokens,
                       std::vector<uint32_t>& token_at) {
  RunTable table;
  HashIndex index(1 << 10);
  tokens.clear();
  token_at.clear();
  Run run{};
  uint32_t length = 0, gap = 0;
  const auto finish_run = [&] {
    const size_t bytes = length * sizeof run[0];
    const uint32_t number = index.find_or_add(
        hash_bytes(reinterpret_cast<const std::byte*>(run.data()), bytes),
        [&](uint32_t at) {
          return table.lengths[at] == length && std::memcmp(table.runs[at].data(), run.data(), bytes) == 0;
        },
        [&] {
          table.runs.push_back(run);
          table.lengths.push_back(static_cast<uint8_t>(length));
          table.uses.push_back(0);
          table.rows += length;
          return static_cast<uint32_t>(table.runs.size() - 1);
        });
    ++table.uses[number];
    tokens.push_back({gap, number});
  };
  size_t transition = 0;
  for (const Extract& extract : extracts) {
    token_at.push_back(static_cast<uint32_t>(tokens.size()));
    uint32_t at = extract.skip;
    gap = 0;
    run[0] = programs.rows[extract.first].rule;
    length = 1;
    for (uint32_t i = 1; i < extract.count; ++i) {
      const ProgramRow& row = programs.rows[extract.first + i];
      const uint32_t distance = row.offset - at;
      at = row.offset;
      if (transition_counts[transition++] >= rare && length < CLEW_RUN_ROWS) {
        run[length++] = distance << 16 | row.rule;
        continue;
      }
      finish_run();
      gap = distance;
      run[0] = row.rule;
      length = 1;
    }
    finish_run();
  }
  token_at.push_back(static_cast<uint32_t>(tokens.size()));
  return table;
}

/// A shape's string.
struct String {
  std::array<std::byte, CLEW_SHAPE_BYTES> bytes{};
  uint32_t length = 0;

  void put(uint32_t byte) { bytes[length++] = static_cast<std::byte>(byte); }
};

uint32_t run_bytes(uint32_t run) { return run < CLEW_RUN_BYTE ? 1 : run < CLEW_RUN_WORD ? 2 : 3; }

uint32_t gap_bytes(uint32_t gap) {
  uint32_t bytes = 1;
  while (gap >>= 7) ++bytes;
  return bytes;
}

void put_run(String& string, uint32_t run) {
  if (run < CLEW_RUN_BYTE) {
    string.put(run);
  } else if (run < CLEW_RUN_WORD) {
    string.put(CLEW_RUN_BYTE + (run - CLEW_RUN_BYTE) / 256);
    string.put((run - CLEW_RUN_BYTE) % 256);
  } else {
    string.put(255);
    string.put(run % 256);
    string.put(run / 256);
  }
}

void put_gap(String& string, uint32_t gap) {
  while (gap >= 128) {
    string.put((gap & 127) | 128);
    gap >>= 7;
  }
  string.put(gap);
}

/// The shapes of a table, each once.
struct ShapeSet {
  std::vector<String> strings;
  HashIndex index{1 << 12};

  uint32_t number_of(const String& string) {
    return index.find_or_add(
        hash_bytes(string.bytes.data(), string.bytes.size()),  // what is not used is zero
        [&](uint32_t at) { return strings[at].length == string.length && strings[at].bytes == string.bytes; },
        [&] {
          strings.push_back(string);
          return static_cast<uint32_t>(strings.size() - 1);
        });
  }
};

/// A record's place relative to its extract's start, and its shape: one an extract, more where a string grew
/// too long.
struct Part {
  uint32_t offset;
  uint32_t shape;
};

template <class T>
void append(std::vector<std::byte>& out, uint32_t& at, std::span<const T> items) {
  at = static_cast<uint32_t>(out.size());
  const auto bytes = std::as_bytes(items);
  out.insert(out.end(), bytes.begin(), bytes.end());
  out.resize((out.size() + 7) / 8 * 8);
}

}  // namespace

std::vector<std::byte> encode(const Programs& programs, std::span<const Piece> pieces,
                              const Dictionary& dictionary, const Identity& identity, uint32_t functions) {
  const uint64_t text_base = pieces.empty() ? 0 : pieces.front().start / kPage * kPage;
  const uint64_t text_end = pieces.empty() ? 0 : pieces.back().end;

  // Records: one a piece, and one at each start of a page that a piece reaches into.
  std::vector<Extract> extracts;
  std::vector<Record> records;
  std::vector<uint32_t> whole(programs.programs.size(),
                              HashIndex::kNone);  // extract of a program from its start
  records.reserve(pieces.size() + pieces.size() / 16);
  const auto add_piece = [&](const Piece& piece) {
    const Program& program = programs.programs[piece.program];
    const ProgramRow* rows = &programs.rows[program.first];
    uint32_t row = 0;
    for (uint64_t start = piece.start; start < piece.end;) {
      const uint64_t end = std::min(piece.end, (start / kPage + 1) * kPage);
      const auto skip = static_cast<uint32_t>(start - piece.start + piece.skip);
      uint32_t extract;
      if (skip == 0 && piece.end == end && whole[piece.program] != HashIndex::kNone) {
        extract = whole[piece.program];
      } else {
        while (row + 1 < program.count && rows[row + 1].offset <= skip) ++row;
        uint32_t last = row + 1;
        // A whole function keeps rows that lie behind its end (nobody looks there), so that all of its kind
        // share them.
        const uint64_t limit = skip == 0 && piece.end == end ? UINT64_MAX : end - start + skip;
        while (last < program.count && rows[last].offset < limit) ++last;
        extract = static_cast<uint32_t>(extracts.size());
        extracts.push_back({program.first + row, last - row, skip});
        if (limit == UINT64_MAX) whole[piece.program] = extract;
      }
      records.push_back({start, extract});
      start = end;
    }
  };
  for (const Piece& piece : pieces) add_piece(piece);
  // Behind the last piece nothing is known.
  if (text_end % kPage != 0) add_piece({text_end, (text_end / kPage + 1) * kPage, 0, 0});

  // Runs: rarer transitions are cut until their table fits its 16-bit indices.
  const std::vector<uint32_t> transitions = count_transitions(programs, extracts);
  std::vector<Token> tokens;
  std::vector<uint32_t> token_at;
  RunTable runs;
  uint32_t rare = static_cast<uint32_t>(std::clamp<size_t>(transitions.size() / 500, 4, 100));
  for (;; rare = rare > UINT32_MAX / 4 ? UINT32_MAX : rare * 4) {
    runs = cut_into_runs(programs, extracts, transitions, rare, tokens, token_at);
    if (runs.rows < UINT16_MAX || rare == UINT32_MAX) break;
  }

  // The runs used most get the numbers of one byte.
  std::vector<uint32_t> order(runs.runs.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return runs.uses[a] != runs.uses[b] ? runs.uses[a] > runs.uses[b] : a < b;
  });
  std::vector<uint32_t> number(order.size());
  for (uint32_t i = 0; i < order.size(); ++i) number[order[i]] = i;

  // Shapes.
  ShapeSet shapes;
  std::vector<Part> parts;
  std::vector<uint32_t> part_at;
  for (size_t e = 0; e < extracts.size(); ++e) {
    part_at.push_back(static_cast<uint32_t>(parts.size()));
    String string;
    uint32_t start = 0, at = 0;  // relative to the extract: of the part, of the last row of the last run
    for (uint32_t t = token_at[e]; t < token_at[e + 1]; ++t) {
      const uint32_t run = number[tokens[t].run];
      at += tokens[t].gap;
      if (string.length != 0 &&
          string.length + gap_bytes(tokens[t].gap) + run_bytes(run) > CLEW_SHAPE_BYTES) {
        parts.push_back({start, shapes.number_of(string)});
        string = {};
        start = at;
      } else if (string.length != 0) {
        put_gap(string, tokens[t].gap);
      }
      put_run(string, run);
      for (uint32_t i = 1; i < runs.lengths[tokens[t].run]; ++i) at += runs.runs[tokens[t].run][i] >> 16;
    }
    parts.push_back({start, shapes.number_of(string)});
  }
  part_at.push_back(static_cast<uint32_t>(parts.size()));

  // Shapes by length, so that neither their places nor their lengths need a table.
  std::vector<uint32_t> by_length;
  by_length.reserve(shapes.strings.size());
  for (uint32_t length = 1; length <= CLEW_SHAPE_BYTES; ++length)
    for (uint32_t i = 0; i < shapes.strings.size(); ++i)
      if (shapes.strings[i].length == length) by_length.push_back(i);
  std::vector<uint32_t> shape_number(by_length.size());
  clew_table_header header{};
  std::vector<std::byte> strings;
  uint32_t length = 0;
  for (uint32_t i = 0; i < by_length.size(); ++i) {
    const String& string = shapes.strings[by_length[i]];
    for (; length < string.length; ++length) {
      header.shape_first[length + 1] = i;
      header.shape_at[length + 1] = static_cast<uint32_t>(strings.size());
    }
    shape_number[by_length[i]] = i;
    strings.insert(strings.end(), string.bytes.begin(), string.bytes.begin() + string.length);
  }
  for (; length <= CLEW_SHAPE_BYTES; ++length) {
    header.shape_first[length + 1] = static_cast<uint32_t>(by_length.size());
    header.shape_at[length + 1] = static_cast<uint32_t>(strings.size());
  }

  // Records, page by page. A part may begin behind the piece's end (rows nobody looks at), or in the next
  // page.
  const bool wide = shapes.strings.size() > UINT16_MAX;
  const auto page_count = static_cast<uint32_t>((text_end - text_base + kPage - 1) / kPage);
  std::vector<uint32_t> pages;
  std::vector<uint16_t> starts;
  std::vector<uint32_t> shape_of;
  pages.reserve(page_count + 1);
  for (size_t r = 0; r < records.size(); ++r) {
    const Record& record = records[r];
    const uint64_t page = (record.start - text_base) / kPage;
    while (pages.size() <= page) pages.push_back(static_cast<uint32_t>(starts.size()));
    uint64_t end = (page + 1) * kPage + text_base;
    if (r + 1 < records.size()) end = std::min(end, records[r + 1].start);
    for (uint32_t p = part_at[record.extract]; p < part_at[record.extract + 1]; ++p) {
      const uint64_t start = record.start + parts[p].offset;
      if (start >= end) break;
      starts.push_back(static_cast<uint16_t>(start));
      shape_of.push_back(shape_number[parts[p].shape]);
    }
  }
  while (pages.size() <= page_count) pages.push_back(static_cast<uint32_t>(starts.size()));

  // Runs in their final order.
  std::vector<uint16_t> run_at, run_rule;
  std::vector<uint8_t> run_gap;
  for (const uint32_t run : order) {
    run_at.push_back(static_cast<uint16_t>(run_rule.size()));
    for (uint32_t i = 0; i < runs.lengths[run]; ++i) {
      run_rule.push_back(static_cast<uint16_t>(runs.runs[run][i]));
      run_gap.push_back(static_cast<uint8_t>(runs.runs[run][i] >> 16));
    }
  }
  run_at.push_back(static_cast<uint16_t>(run_rule.size()));

  header.magic = CLEW_TABLE_MAGIC;
  header.version = CLEW_TABLE_VERSION;
  header.text_base = text_base;
  header.page_count = page_count;
  header.record_count = static_cast<uint32_t>(starts.size());
  header.shape_count = static_cast<uint32_t>(by_length.size());
  header.run_count = static_cast<uint32_t>(order.size());
  header.run_rows = static_cast<uint32_t>(run_rule.size());
  header.rule_count = static_cast<uint32_t>(dictionary.rules().size());
  header.saves_count = static_cast<uint32_t>(dictionary.saves().size());
  header.pool_bytes = static_cast<uint32_t>(dictionary.pool().size());
  header.wide_shapes = wide;
  header.function_count = functions;
  header.file_bytes = identity.file_bytes;
  header.source_hash = identity.source_hash;
  std::copy_n(identity.build_id.begin(), std::min(identity.build_id.size(), sizeof header.build_id),
              reinterpret_cast<std::byte*>(header.build_id));

  std::vector<std::byte> out(sizeof header);
  append<uint32_t>(out, header.pages_at, pages);
  append<uint16_t>(out, header.starts_at, starts);
  if (wide) {
    append<uint32_t>(out, header.shapes_at, shape_of);
  } else {
    const std::vector<uint16_t> narrow(shape_of.begin(), shape_of.end());
    append<uint16_t>(out, header.shapes_at, narrow);
  }
  append<std::byte>(out, header.strings_at, strings);
  append<uint16_t>(out, header.run_at_at, run_at);
  append<uint16_t>(out, header.run_rule_at, run_rule);
  append<uint8_t>(out, header.run_gap_at, run_gap);
  append<uint64_t>(out, header.rules_at, dictionary.rules());
  append<uint64_t>(out, header.saves_at, dictionary.saves());
  append<std::byte>(out, header.pool_at, dictionary.pool());
  header.bytes = static_cast<uint32_t>(out.size());
  std::memcpy(out.data(), &header, sizeof header);
  header.checksum = checksum(out);
  std::memcpy(out.data(), &header, sizeof header);
  return out;
}

}  // namespace clew::table
