#include "tools/commands/stated_numbers.h"

#include <string>
#include <utility>

namespace shardplan {
namespace {

// `calibrate` measured on such a GPU, all by one command; rates that last come from publications.
Provenance provenance_of_rate(const StepNumber& number, const GpuSpec& gpu) {
  return number.name.starts_with("sustained/")
             ? Provenance{.origin = Origin::kDocumented, .source = gpu.sustained->source}
             : Provenance{.origin = Origin::kMeasured, .source = gpu.times->source};
}

Provenance provenance_of(const StepNumber& number, const Job& job, const Library& library) {
  const std::string name(number.name);
  switch (number.table) {
    case NumberTable::kTime: return library.time_constants_file().provenances.at(name);
    case NumberTable::kGpu: return provenance_of_rate(number, job.cluster.gpu);
    case NumberTable::kHost:
    case NumberTable::kCompiledHost: break;
  }
  const ProfileFile& profile = library.profile(library.key_of(job.profile));
  return profile.host_numbers.at(std::string(name_of(number.table)) + "/" + name);
}

}  // namespace

std::vector<StatedNumber> stated_numbers(const Job& job, const Plan& plan, const Library& library) {
  std::vector<StatedNumber> stated;
  for (StepNumber& number : step_numbers(job, plan)) {
    Provenance provenance = provenance_of(number, job, library);
    stated.push_back({.number = std::move(number), .provenance = std::move(provenance)});
  }
  return stated;
}

}  // namespace shardplan
