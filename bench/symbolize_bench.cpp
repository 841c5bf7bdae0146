// Symbolizing random addresses inside functions of a file, beside llvm-symbolizer and binutils' addr2line,
// all in one run.
//   bench_symbolize [--json FILE] [ELF [ADDRESSES]]     default: this program, 5000
// A figure is the best of three runs, wall clock, program start included for all.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "elf/image.hpp"
#include "figures.hpp"
#include "symbolize/symbolize.hpp"

namespace {

double best_seconds(const std::function<void()>& work) {
  double best = 1e9;
  for (int round = 0; round < 3; ++round) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

std::vector<uint64_t> random_addresses(const std::string& file, size_t count) {
  std::vector<uint64_t> addresses;
  auto image = clew::elf::Image::open(file);
  if (!image) return addresses;
  std::vector<clew::elf::Symbol> functions;
  for (const clew::elf::Symbol& symbol : image->symbols()) {
    if (symbol.size > 0) functions.push_back(symbol);
  }
  std::mt19937_64 random(1);
  while (!functions.empty() && addresses.size() < count) {
    const clew::elf::Symbol& function = functions[random() % functions.size()];
    addresses.push_back(function.address + random() % function.size);
  }
  std::sort(addresses.begin(), addresses.end());
  return addresses;
}

}  // namespace

int main(int argc, char** argv) {
  clew::bench::Figures figures(argc, argv);
  const std::vector<std::string>& rest = figures.arguments();
  const std::string file = rest.empty() ? argv[0] : rest[0];
  const size_t count = rest.size() < 2 ? 5000 : std::strtoul(rest[1].c_str(), nullptr, 10);
  const std::vector<uint64_t> addresses = random_addresses(file, count);
  if (addresses.empty()) {
    std::fprintf(stderr, "bench_symbolize: %s has no function symbols; name another file\n", file.c_str());
    return 2;
  }
  char questions[] = "/tmp/clew-bench-XXXXXX";
  const int fd = mkstemp(questions);
  FILE* const out = fd >= 0 ? fdopen(fd, "w") : nullptr;
  if (out == nullptr) return 2;
  for (const uint64_t address : addresses)
    std::fprintf(out, "0x%llx\n", static_cast<unsigned long long>(address));
  std::fclose(out);

  struct Row {
    const char* peer;
    double seconds;
  };
  std::vector<Row> rows;
  rows.push_back({"clew", best_seconds([&] {
                    clew::symbolize::Symbolizer symbolizer;
                    symbolizer.symbolize({file, "", ""}, addresses);
                  })});
  const std::string tail = " '" + file + "' < " + questions + " > /dev/null";
  int failed = 0;
  const auto peer = [&](const char* name, const std::string& command) {
    int status = 0;
    const double seconds = best_seconds([&] { status |= std::system((command + tail).c_str()); });
    if (status == 0) rows.push_back({name, seconds});
    failed |= status;
  };
  peer("llvm-symbolizer", "llvm-symbolizer-19 -e");
  peer("addr2line", "addr2line -fiC -e");
  std::remove(questions);

  for (const Row& row : rows) {
    std::printf("%-16s %7.3f s  %5.2f x clew\n", row.peer, row.seconds, row.seconds / rows[0].seconds);
    figures.add(std::to_string(addresses.size()) + " addresses", "symbolize", "s", row.seconds, row.peer);
  }
  if (failed != 0) std::fprintf(stderr, "bench_symbolize: a peer failed or is missing\n");
  return figures.write();
}
