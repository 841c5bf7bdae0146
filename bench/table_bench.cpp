// Compact tables: bytes against .eh_frame, and how fast they are built and looked up.
//   bench_table [--json FILE] [ELF...]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "figures.hpp"
#include "table/table.hpp"

namespace {

/// CPU time of this thread, which other work on the machine hardly changes.
double cpu_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

void measure(const std::string& path, clew::bench::Figures& figures) {
  auto image = clew::elf::Image::open(path);
  if (!image) {
    std::printf("%-20s skipped: %s\n", path.c_str(), image.error().c_str());
    return;
  }
  clew::table::Report report;
  std::shared_ptr<const clew::table::Table> table;
  double build_ns = 1e18;
  for (int round = 0; round < 7; ++round) {
    const double begin = cpu_ns();
    auto compiled = clew::table::compile(*image, &report);
    build_ns = std::min(build_ns, cpu_ns() - begin);
    if (!compiled) return;
    table = *compiled;
  }
  // Random addresses of functions' rows, so that neither the search nor the caches are helped.
  const auto dump = clew::table::dump(*table);
  std::mt19937_64 random(1);
  std::vector<uint64_t> addresses(1 << 16);
  for (uint64_t& address : addresses) address = dump[random() % dump.size()].address;
  double lookup_ns = 1e18;
  uint64_t sum = 0;
  for (int round = 0; round < 7; ++round) {
    const double begin = cpu_ns();
    for (const uint64_t address : addresses) sum += table->lookup(address);
    lookup_ns = std::min(lookup_ns, (cpu_ns() - begin) / static_cast<double>(addresses.size()));
  }

  const std::string name = path.substr(path.rfind('/') + 1);
  const auto eh_frame = static_cast<double>(report.eh_frame_bytes);
  const double size = static_cast<double>(report.table_bytes) / eh_frame;
  const double speed = eh_frame / build_ns * 1e3;
  figures.add(name, "table bytes / .eh_frame bytes", "ratio", size);
  figures.add(name, "build time", "ms", build_ns / 1e6);
  figures.add(name, ".eh_frame built", "MB/s", speed);
  figures.add(name, "look-up, random", "ns", lookup_ns);
  std::printf("%-22s %9.0f  %8llu  %5.3f  %8.2f  %6.0f  %6.1f%s\n", name.c_str(), eh_frame,
              static_cast<unsigned long long>(report.table_bytes), size, build_ns / 1e6, speed, lookup_ns,
              sum == 0 ? "?" : "");
}

}  // namespace

int main(int argc, char** argv) {
  clew::bench::Figures figures(argc, argv);
  std::vector<std::string> paths = figures.arguments();
  if (paths.empty()) {
    paths = {"/lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libcrypto.so.3", "/usr/bin/node",
             "/usr/lib/x86_64-linux-gnu/libLLVM-15.so.1"};
  }
  std::printf("%-22s %9s  %8s  %5s  %8s  %6s  %6s\n", "file", ".eh_frame", "table", "ratio", "build ms",
              "MB/s", "ns/pc");
  for (const std::string& path : paths) measure(path, figures);
  return figures.write();
}
