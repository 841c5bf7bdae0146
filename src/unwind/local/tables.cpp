// Compact tables of what this process has mapped. Not for signal handlers.
#include <link.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "clew/unwind.h"
#include "elf/image.hpp"
#include "table/table.hpp"
#include "unwind/local/memory.hpp"
#include "unwind/local/modules.hpp"

namespace clew::unwind::local {
namespace {

/// The module as it lies in memory, which is what runs, whatever its path names by now.
Result<elf::Image> image_in_memory(const Module& module) {
  return elf::Image::from_memory(
      [](uint64_t address, std::span<std::byte> out) {
        return copy_memory(address, out.data(), out.size()) ? out.size() : 0;
      },
      module.start, "module");
}

/// How many modules have been unloaded so far.
uint64_t unloaded_count() {
  uint64_t count = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        *static_cast<uint64_t*>(out) = info->dlpi_subs;
        return 1;
      },
      &count);
  return count;
}

std::shared_ptr<const table::Table> table_of(const Module& module, const std::string& path) {
  auto loaded = image_in_memory(module);
  if (!loaded) return nullptr;
  // Without a build-id, what is loaded at its address later could not be told from it.
  if (!module.permanent && loaded->build_id().empty()) return nullptr;
  if (auto file = elf::Image::open(path)) {
    // The file that is there now is the one that is mapped if it says so: then its table is in the cache, or
    // will be.
    const auto id = file->build_id(), loaded_id = loaded->build_id();
    if (!id.empty() && std::ranges::equal(id, loaded_id))
      if (auto table = table::load_or_compile(*file)) return *table;
  }
  auto table = table::compile(*loaded);
  return table ? *table : nullptr;
}

}  // namespace
}  // namespace clew::unwind::local

extern "C" size_t clew_load_tables() {
  using namespace clew::unwind::local;
  struct Loaded {
    uintptr_t address;
    std::string path;
  };
  static std::mutex one_at_a_time;
  // Kept for ever: a walk may be reading them, at the process's very end too.
  static auto& kept = *new std::vector<std::shared_ptr<const clew::table::Table>>;
  const std::lock_guard lock(one_at_a_time);
  std::vector<Loaded> all;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        for (unsigned i = 0; i < info->dlpi_phnum; ++i) {
          if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
          static_cast<std::vector<Loaded>*>(out)->push_back(
              {info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, info->dlpi_name ? info->dlpi_name : ""});
          break;
        }
        return 0;
      },
      &all);
  size_t count = 0;
  for (const Loaded& loaded : all) {
    const uint64_t unloaded = unloaded_count();
    Module module;
    if (!find_module(loaded.address, module)) continue;
    if (module.table) {
      ++count;
      continue;
    }
    auto table = table_of(module, loaded.path.empty() ? "/proc/self/exe" : loaded.path);
    if (!table) continue;
    // It may have been read from another module, which has come in the place of the first since that was
    // found.
    if (!module.permanent && unloaded_count() != unloaded) continue;
    kept.push_back(table);
    publish_table(module, table->header());
    ++count;
  }
  return count;
}
