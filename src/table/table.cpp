// The read-only view of a table: check, look up, dump, describe.
#include "table/table.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "core/table.h"

namespace clew::table {
namespace {

std::string register_text(uint32_t reg) {
  constexpr const char* kNames[CLEW_REGISTERS] = {"rax", "rdx", "rcx", "rbx", "rsi", "rdi", "fp",  "sp", "r8",
                                                  "r9",  "r10", "r11", "r12", "r13", "r14", "r15", "rip"};
  return reg < CLEW_REGISTERS ? kNames[reg] : "r" + std::to_string(reg);
}

std::string signed_text(int64_t value) { return (value < 0 ? "" : "+") + std::to_string(value); }

std::string save_text(clew_save save) {
  const int32_t offset = clew_save_offset(save);
  switch (clew_save_kind_of(save)) {
    case CLEW_SAVE_AT_CFA:
      return "c" + signed_text(offset);
    case CLEW_SAVE_CFA_PLUS:
      return "v" + signed_text(offset);
    case CLEW_SAVE_REGISTER:
      return register_text(static_cast<uint32_t>(offset));
    case CLEW_SAVE_EXPR_AT:
      return "exp";
    case CLEW_SAVE_EXPR_VALUE:
      return "vexp";
    default:
      return "u";
  }
}

}  // namespace

uint64_t checksum(std::span<const std::byte> bytes) {
  // Four lanes, so that the multiplications overlap.
  uint64_t lanes[4] = {1, 2, 3, 4};
  constexpr size_t kField = offsetof(clew_table_header, checksum);
  for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    if (at == kField) word = 0;
    uint64_t& lane = lanes[at / 8 % 4];
    lane = (lane ^ word) * 0x9e3779b97f4a7c15u;
    lane ^= lane >> 32;
  }
  uint64_t sum = bytes.size();
  for (const uint64_t lane : lanes) {
    sum = (sum ^ lane) * 0x9e3779b97f4a7c15u;
    sum ^= sum >> 29;
  }
  return sum;
}

Result<bool> check(std::span<const std::byte> bytes) {
  clew_table_header header;
  if (bytes.size() < sizeof header) return Error{"table is shorter than its header"};
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != CLEW_TABLE_MAGIC) return Error{"not a clew table"};
  if (header.version != CLEW_TABLE_VERSION) return Error{"table of another version"};
  if (header.bytes != bytes.size() || bytes.size() % 8 != 0)
    return Error{"table has another size than it says"};
  if (header.checksum != checksum(bytes)) return Error{"table is damaged: its checksum does not match"};
  // The look-up bounds each access by itself; what is checked here is that it stays within this table's own
  // parts.
  const auto inside = [&](uint32_t at, uint64_t count, uint64_t size) {
    return at % 8 == 0 && at >= sizeof header && at <= bytes.size() && count * size <= bytes.size() - at;
  };
  const bool laid_out =
      inside(header.pages_at, uint64_t{header.page_count} + 1, 4) &&
      inside(header.starts_at, header.record_count, 2) &&
      inside(header.shapes_at, header.record_count, header.wide_shapes ? 4 : 2) &&
      inside(header.strings_at, header.shape_at[CLEW_SHAPE_BYTES + 1], 1) &&
      inside(header.run_at_at, uint64_t{header.run_count} + 1, 2) &&
      inside(header.run_rule_at, header.run_rows, 2) && inside(header.run_gap_at, header.run_rows, 1) &&
      inside(header.rules_at, header.rule_count, 8) && inside(header.saves_at, header.saves_count, 8) &&
      inside(header.pool_at, header.pool_bytes, 1);
  if (!laid_out) return Error{"table has a part outside of itself"};
  return true;
}

const clew_table_header* Table::header() const {
  return reinterpret_cast<const clew_table_header*>(bytes_.data());
}

clew_rule Table::lookup(uint64_t vaddr) const { return clew_table_lookup(nullptr, header(), vaddr); }

Table::~Table() {
  if (mapping_) munmap(mapping_, bytes_.size());
}

Result<std::shared_ptr<const Table>> Table::from_bytes(std::vector<std::byte> bytes) {
  if (auto sound = check(bytes); !sound) return Error{sound.error()};
  std::shared_ptr<Table> table(new Table);
  table->owned_ = std::move(bytes);
  table->bytes_ = table->owned_;
  return std::shared_ptr<const Table>(table);
}

Result<std::shared_ptr<const Table>> Table::map(const std::string& path) {
  const auto failed = [&](const std::string& what) { return Error{path + ": " + what}; };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return failed(std::strerror(errno));
  struct stat info;
  const bool trusted = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
                       (info.st_uid == geteuid() || info.st_uid == 0) && (info.st_mode & 022) == 0;
  if (!trusted || info.st_size <= 0 || info.st_size > UINT32_MAX) {
    close(fd);
    return failed("not a cache file of this user");
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (mapping == MAP_FAILED) return failed(std::strerror(errno));
  std::shared_ptr<Table> table(new Table);
  table->mapping_ = mapping;
  table->bytes_ = {static_cast<const std::byte*>(mapping), size};
  if (auto sound = check(table->bytes_); !sound) return failed(sound.error());
  return std::shared_ptr<const Table>(table);
}

std::vector<DumpRow> dump(const Table& table) {
  std::vector<DumpRow> rows;
  const clew_table_header& header = *table.header();
  const auto add = [&](uint64_t address, uint32_t row) {
    const uint32_t number = clew_table_u16(nullptr, &header, header.run_rule_at + row * 2);
    const clew_rule rule = clew_table_u64(nullptr, &header, header.rules_at + number * 8);
    if (rows.empty() || rows.back().rule != rule) rows.push_back({address, rule});
  };
  for (uint32_t page = 0; page < header.page_count; ++page) {
    const uint64_t base = header.text_base + (uint64_t{page} << CLEW_TABLE_PAGE_BITS);
    const uint32_t first = clew_table_u32(nullptr, &header, header.pages_at + page * 4);
    const uint32_t last =
        std::min(clew_table_u32(nullptr, &header, header.pages_at + page * 4 + 4), header.record_count);
    for (uint32_t record = first; record < last; ++record) {
      const uint64_t start = base + clew_table_u16(nullptr, &header, header.starts_at + record * 2);
      const uint64_t end = record + 1 < last
                               ? base + clew_table_u16(nullptr, &header, header.starts_at + record * 2 + 2)
                               : base + (uint64_t{1} << CLEW_TABLE_PAGE_BITS);
      const uint32_t shape = header.wide_shapes
                                 ? clew_table_u32(nullptr, &header, header.shapes_at + record * 4)
                                 : clew_table_u16(nullptr, &header, header.shapes_at + record * 2);
      uint32_t length;
      clew_shape_cursor cursor{};
      cursor.at = clew_table_string(&header, shape, &length);
      cursor.end = cursor.at + length;
      uint64_t address = start;
      while (cursor.at < cursor.end && address < end) {
        if (cursor.at != cursor.end - length) address += clew_shape_gap(nullptr, &header, &cursor);
        const uint32_t run = clew_shape_run(nullptr, &header, &cursor);
        const uint32_t at = clew_table_u16(nullptr, &header, header.run_at_at + run * 2);
        const uint32_t behind = clew_table_u16(nullptr, &header, header.run_at_at + run * 2 + 2);
        for (uint32_t row = at; row < behind && row - at < CLEW_RUN_ROWS; ++row) {
          if (row != at) address += clew_table_u8(nullptr, &header, header.run_gap_at + row);
          if (address >= end) break;
          add(address, row);
        }
      }
    }
  }
  return rows;
}

RuleText describe(const Table& table, clew_rule rule) {
  RuleText text;
  const int32_t offset = clew_rule_offset(rule);
  switch (clew_rule_kind(rule)) {
    case CLEW_CFA_NONE:
      return {"none", "u", "u"};
    case CLEW_CFA_ROOT:
      return {"root", "u", "u"};
    case CLEW_CFA_REG:
      text.cfa = register_text(clew_rule_register(rule)) + signed_text(offset);
      break;
    case CLEW_CFA_DEREF:
      text.cfa = "(" + register_text(clew_rule_register(rule)) + signed_text(offset) + ")";
      break;
    case CLEW_CFA_SIGFRAME:
      return {"(sp" + signed_text(offset + 160) + ")", "exp", "exp"};  // of struct ucontext
    case CLEW_CFA_CHILD:
      text.cfa = "child:sp" + signed_text(offset);
      break;
    default:
      text.cfa = "exp";
      break;
  }
  const uint32_t bp = clew_rule_bp(rule);
  text.fp = bp == CLEW_BP_UNCHANGED || bp == CLEW_BP_IN_SAVES ? "u" : "c-" + std::to_string(8 * bp);
  text.ra = "c-8";
  const clew_table_header& header = *table.header();
  const uint32_t saves = clew_rule_saves(rule);
  if (saves != 0 && saves < header.saves_count) {
    const uint64_t list = clew_table_u64(nullptr, &header, header.saves_at + saves * 8);
    for (uint32_t i = 1; i <= (list & CLEW_SAVES_COUNT_MASK); ++i) {
      const clew_save save = clew_table_u64(nullptr, &header, header.saves_at + (saves + i) * 8);
      if (clew_save_register(save) == CLEW_RBP) text.fp = save_text(save);
      if (clew_save_register(save) == CLEW_RIP) text.ra = save_text(save);
    }
  }
  return text;
}

}  // namespace clew::table
