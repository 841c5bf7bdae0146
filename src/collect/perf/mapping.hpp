// From a mapping's record to the file behind it.
#pragma once

#include "collect/perf/record.hpp"
#include "process/address_space.hpp"

namespace clew::collect::perf {

process::MapsEntry maps_entry(const Mmap2& record);
/// The mapping with its module, opened now.
process::Mapping open_mapping(const Mmap2& record, process::ModuleCache& modules);

}  // namespace clew::collect::perf
