// clew table stats|dump ELF: the compact unwind table of a file, compiled now (the cache is not asked).
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <optional>

#include "cli/cli.hpp"
#include "cli/text.hpp"
#include "elf/image.hpp"
#include "process/process.hpp"
#include "table/table.hpp"

namespace clew::cli {
namespace {

struct Figure {
  const char* key;
  const char* label;
  uint64_t value;
};

void print_stats(const TableOptions& options, const std::vector<Figure>& figures,
                 const table::Report& report) {
  if (options.json) {
    std::string text = "{\"file\":" + json_string(options.file);
    for (const Figure& figure : figures) text += fmt::format(",\"{}\":{}", figure.key, figure.value);
    text += ",\"defects\":{";
    for (size_t i = 0; i < report.defects.size(); ++i)
      text += fmt::format("{}{}:{}", i ? "," : "", json_string(report.defects[i].first),
                          report.defects[i].second);
    fmt::print("{}}}}}\n", text);
    return;
  }
  fmt::print("{}\n", printable(options.file));
  for (const Figure& figure : figures) fmt::print("  {:<34} {:>12}\n", figure.label, figure.value);
  for (const auto& [what, count] : report.defects) fmt::print("  left out: {} {}\n", count, printable(what));
}

}  // namespace

int table(const TableOptions& options) {
  Result<elf::Image> image = elf::Image::open(options.file);
  if (!image) return fail(image.error());
  std::error_code ignored;
  const std::string path = std::filesystem::absolute(options.file, ignored).string();
  std::optional<elf::Image> debug = process::open_debug_frame(*image, path, "");
  table::Report report;
  auto compiled = table::compile(*image, &report, debug ? &*debug : nullptr);
  if (!compiled) return fail(compiled.error());
  if (options.dump) {
    std::string text;
    for (const table::DumpRow& row : table::dump(**compiled)) {
      table::RuleText rule = table::describe(**compiled, row.rule);
      text += fmt::format("{:016x} {} {} {}\n", row.address, rule.cfa, rule.fp, rule.ra);
    }
    std::fwrite(text.data(), 1, text.size(), stdout);
    return 0;
  }
  const elf::Section* sframe = image->section(".sframe");
  print_stats(options,
              {{"eh_frame_bytes", ".eh_frame, bytes", report.eh_frame_bytes},
               {"debug_frame_bytes", ".debug_frame, bytes", report.debug_frame_bytes},
               {"sframe_bytes", ".sframe, bytes", sframe ? sframe->size : 0},
               {"table_bytes", "compact table, bytes", report.table_bytes},
               {"functions", "functions", report.functions},
               {"rows", "rows", report.rows},
               {"rules", "distinct rules", report.rules},
               {"build_ns", "time to build, ns", report.build_ns}},
              report);
  return 0;
}

}  // namespace clew::cli
