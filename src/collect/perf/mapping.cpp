#include "collect/perf/mapping.hpp"

namespace clew::collect::perf {

process::Mapping open_mapping(const Mmap2& record, process::ModuleCache& modules) {
  // The kernel's name for memory without a file; /proc/PID/maps has no name there.
  const std::string_view path = record.path == "//anon" ? std::string_view() : record.path;
  return process::mapping_from_event(static_cast<pid_t>(record.pid), record.address, record.length,
                                     record.offset, record.major, record.minor, record.inode,
                                     record.generation, record.protection, path, modules);
}

}  // namespace clew::collect::perf
