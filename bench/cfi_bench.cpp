// How fast cfi reads sections: entries alone, and with their rows. Prints one line a figure; the best of
// several rounds.
//   bench_cfi [--json FILE] [ELF...]
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "cfi/elf_sections.hpp"
#include "figures.hpp"

namespace {

using namespace clew::cfi;

struct Counts {
  uint64_t fdes = 0;
  uint64_t rows = 0;
  uint64_t register_changes = 0;  // rows at which a consumer has to look at the registers
  uint64_t sum = 0;               // of what a consumer would read, so that nothing is optimised away
};

Counts read_entries(const Section& section) {
  Counts counts;
  Reader reader(section);
  for (Fde fde; reader.next(fde);) {
    ++counts.fdes;
    counts.sum += fde.start;
  }
  return counts;
}

Counts read_rows(const Section& section) {
  Counts counts;
  Reader reader(section);
  Interpreter interpreter(reader.defects());
  uint64_t version = 0;
  for (Fde fde; reader.next(fde);) {
    ++counts.fdes;
    interpreter.run(section, reader.cies()[fde.cie], fde, [&](uint64_t offset, const Row& row) {
      ++counts.rows;
      counts.sum += offset + static_cast<uint64_t>(row.cfa.offset) + row.cfa.reg;
      if (row.registers_version != version) {
        version = row.registers_version;
        ++counts.register_changes;
        counts.sum += row.present.to_ulong();
      }
    });
  }
  return counts;
}

template <class Function>
double best_ns(Function&& function, Counts& counts) {
  double best = 1e18;
  for (int round = 0; round < 7; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    counts = function();
    const auto end = std::chrono::steady_clock::now();
    best = std::min(best, static_cast<double>(std::chrono::nanoseconds(end - begin).count()));
  }
  return best;
}

void measure(const std::string& path, clew::bench::Figures& figures) {
  const auto owned = test::find_section(path, ".eh_frame");
  if (!owned) {
    std::printf("%s: no .eh_frame\n", path.c_str());
    return;
  }
  Counts counts;
  const double entries_ns = best_ns([&] { return read_entries(owned->section); }, counts);
  const double rows_ns = best_ns([&] { return read_rows(owned->section); }, counts);
  const auto bytes = static_cast<double>(owned->bytes.size());
  const auto fdes = static_cast<double>(counts.fdes);
  const auto rows = static_cast<double>(counts.rows);
  std::printf("%-45s %8.0f FDEs %8.0f rows %8zu register changes (%016lx)\n", path.c_str(), fdes, rows,
              static_cast<size_t>(counts.register_changes), static_cast<unsigned long>(counts.sum));
  std::printf("  entries %7.2f ms %6.1f ns/FDE %6.0f MB/s\n", entries_ns / 1e6, entries_ns / fdes,
              bytes * 1e3 / entries_ns);
  std::printf("  rows    %7.2f ms %6.1f ns/row beside the entries, %6.0f MB/s in all\n", rows_ns / 1e6,
              (rows_ns - entries_ns) / rows, bytes * 1e3 / rows_ns);
  figures.add(path, ".eh_frame entries read", "MB/s", bytes * 1e3 / entries_ns);
  figures.add(path, ".eh_frame rows read", "MB/s", bytes * 1e3 / rows_ns);
}

}  // namespace

int main(int argc, char** argv) {
  clew::bench::Figures figures(argc, argv);
  std::vector<std::string> files = figures.arguments();
  if (files.empty()) {
    files = {"/usr/lib/x86_64-linux-gnu/libLLVM-15.so.1", "/usr/bin/node",
             "/usr/lib/x86_64-linux-gnu/libcrypto.so.3", "/lib/x86_64-linux-gnu/libc.so.6"};
  }
  for (const std::string& file : files) measure(file, figures);
  return figures.write();
}
