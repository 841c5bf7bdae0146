// Programs by hand through the encoder and back: overlaps of pages, long functions, many shapes, damaged
// bytes.
#include "table/encode.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "core/table.h"
#include "table/table.hpp"

namespace clew::table {
namespace {

/// A dictionary of `count` rules CFA = rsp + 8 i; rule number i + 1 is the i-th.
Dictionary dictionary_of(unsigned count) {
  Dictionary dictionary;
  for (unsigned i = 0; i < count; ++i) {
    cfi::Row row;
    row.cfa = {cfi::CfaKind::kRegister, CLEW_RSP, 0, 8 * i, 0};
    EXPECT_EQ(dictionary.rule_of_row({}, row, 0), i + 1);
  }
  return dictionary;
}

struct Model {
  Programs programs{{{0, Dictionary::kNone}}, {{0, 1}}};
  std::vector<Piece> pieces;

  void function(uint64_t start, uint64_t end, const std::vector<ProgramRow>& rows) {
    programs.programs.push_back(
        {static_cast<uint32_t>(programs.rows.size()), static_cast<uint32_t>(rows.size())});
    programs.rows.insert(programs.rows.end(), rows.begin(), rows.end());
    if (!pieces.empty() && pieces.back().end < start) pieces.push_back({pieces.back().end, start, 0, 0});
    pieces.push_back({start, end, static_cast<uint32_t>(programs.programs.size() - 1), 0});
  }
  /// The rule number at an address, by a linear search of the pieces.
  uint16_t at(uint64_t address) const {
    for (const Piece& piece : pieces) {
      if (address < piece.start || address >= piece.end) continue;
      const Program& program = programs.programs[piece.program];
      uint16_t rule = 0;
      for (uint32_t i = 0; i < program.count; ++i) {
        const ProgramRow& row = programs.rows[program.first + i];
        if (i == 0 || row.offset <= address - piece.start + piece.skip) rule = row.rule;
      }
      return rule;
    }
    return 0;
  }
};

void expect_equal(const Model& model, const Dictionary& dictionary, uint64_t from, uint64_t to,
                  uint64_t step = 1) {
  auto table = Table::from_bytes(encode(model.programs, model.pieces, dictionary, {{}, 0, 0}, 0));
  ASSERT_TRUE(table) << table.error();
  for (uint64_t address = from; address < to; address += step) {
    ASSERT_EQ((*table)->lookup(address), dictionary.rules()[model.at(address)]) << std::hex << address;
  }
}

TEST(Encode, RandomFunctions) {
  std::mt19937 random(1);
  const Dictionary dictionary = dictionary_of(40);
  Model model;
  uint64_t at = 0x400123;
  for (int f = 0; f < 2000; ++f) {
    std::vector<ProgramRow> rows;
    uint32_t offset = 0;
    for (unsigned i = 0, count = 1 + random() % 20; i < count; ++i) {
      rows.push_back({offset, static_cast<uint16_t>(1 + random() % 40)});
      offset += 1 + random() % (random() % 4 == 0 ? 400 : 8);
    }
    const uint64_t end = at + offset + random() % 40;
    model.function(at, end, rows);
    at = end + (random() % 3 == 0 ? random() % 64 : 0);
  }
  expect_equal(model, dictionary, 0x400000, at + 100, 3);
}

TEST(Encode, FunctionsAcrossPages) {  // longer than 64 KiB, and one that begins a byte before a page
  const Dictionary dictionary = dictionary_of(4);
  Model model;
  model.function(0x40fff0, 0x43f123, {{0, 1}, {5, 2}, {0x10, 3}, {0x12345, 4}, {0x20000, 1}});
  model.function(0x44ffff, 0x450010, {{0, 2}, {1, 3}, {9, 4}});
  expect_equal(model, dictionary, 0x40ff00, 0x450100, 1);
}

TEST(Encode, ManyRowsInOneFunction) {  // more than a shape's string can hold
  const Dictionary dictionary = dictionary_of(200);
  Model model;
  std::vector<ProgramRow> rows;
  for (uint32_t i = 0; i < 3000; ++i) rows.push_back({i * 7, static_cast<uint16_t>(1 + (i * 37) % 200)});
  model.function(0x1000, 0x1000 + 3000 * 7, rows);
  expect_equal(model, dictionary, 0xf00, 0x7000, 1);
}

TEST(Encode, ManyRunsTakeWideNumbers) {
  const Dictionary dictionary = dictionary_of(20000);
  Model model;
  uint64_t at = 0x10000;
  for (uint32_t i = 0; i + 2 < 20000; i += 2) {
    model.function(at, at + 32, {{0, static_cast<uint16_t>(i + 1)}, {16, static_cast<uint16_t>(i + 2)}});
    at += 32;
  }
  expect_equal(model, dictionary, 0x10000, at, 5);
}

TEST(Encode, ManyShapesTakeWideNumbers) {
  std::mt19937 random(2);
  const Dictionary dictionary = dictionary_of(100);
  Model model;
  uint64_t at = 0x10000;
  for (uint32_t i = 0; i < 70000; ++i) {
    model.function(at, at + 64,
                   {{0, static_cast<uint16_t>(1 + i % 100)},
                    {static_cast<uint32_t>(1 + random() % 20), static_cast<uint16_t>(1 + random() % 100)},
                    {static_cast<uint32_t>(30 + random() % 20), static_cast<uint16_t>(1 + random() % 100)}});
    at += 64;
  }
  expect_equal(model, dictionary, 0x10000, at, 61);
}

TEST(Encode, NothingAtAll) {
  auto table = Table::from_bytes(encode(Model().programs, {}, Dictionary(), {{}, 0, 0}, 0));
  ASSERT_TRUE(table) << table.error();
  EXPECT_EQ((*table)->lookup(0), 0u);
  EXPECT_EQ((*table)->lookup(UINT64_MAX), 0u);
}

TEST(Check, DamageIsSeen) {
  const Dictionary dictionary = dictionary_of(4);
  Model model;
  model.function(0x1000, 0x1100, {{0, 1}, {5, 2}, {16, 3}});
  const std::vector<std::byte> bytes = encode(model.programs, model.pieces, dictionary, {{}, 0, 0}, 0);
  EXPECT_TRUE(check(bytes));
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int bit : {0, 7}) {
      auto damaged = bytes;
      damaged[at] ^= static_cast<std::byte>(1 << bit);
      EXPECT_FALSE(check(damaged)) << "byte " << at;
    }
  }
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(check({bytes.data(), size}));
}

TEST(Lookup,
     HostileTableIsBounded) {  // a forged checksum does not lead outside of the table: run under sanitizers
  std::mt19937 random(3);
  const Dictionary dictionary = dictionary_of(40);
  Model model;
  for (int f = 0; f < 50; ++f) {
    model.function(0x1000 + f * 64, 0x1040 + f * 64,
                   {{0, static_cast<uint16_t>(1 + f % 40)}, {5, 2}, {static_cast<uint32_t>(8 + f), 3}});
  }
  const std::vector<std::byte> bytes = encode(model.programs, model.pieces, dictionary, {{}, 0, 0}, 0);
  uint64_t sum = 0;
  for (int round = 0; round < 20000; ++round) {
    auto damaged = bytes;
    for (int i = 0; i < 4; ++i)
      damaged[16 + random() % (damaged.size() - 16)] = static_cast<std::byte>(random());
    clew_table_header header;
    std::memcpy(&header, damaged.data(), sizeof header);
    header.bytes = static_cast<uint32_t>(damaged.size());
    std::memcpy(damaged.data(), &header, sizeof header);
    const auto* table = reinterpret_cast<const clew_table_header*>(damaged.data());
    for (uint64_t address = 0xff0; address < 0x2000; address += 61)
      sum += clew_table_lookup(nullptr, table, address);
  }
  EXPECT_NE(sum, 0u);
}

}  // namespace
}  // namespace clew::table
