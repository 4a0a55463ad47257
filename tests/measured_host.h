// Jobs that tests make by hand, on hosts that launch as the library's files say.
#pragma once

#include "data/read/library.h"
#include "estimator/frameworks/framework.h"
#include "estimator/plan/job.h"

namespace shardplan {

// Gives the profile what hosts take for its framework.
inline void measure_host(FrameworkProfile& profile) {
  static const Library library;
  for (const std::string& name : library.framework_names()) {
    const FrameworkProfile& known = library.profile(name).profile;
    if (known.memory_model == profile.memory_model) {
      profile.host = known.host;
      return;
    }
  }
}

inline void set_measured_framework(FrameworkProfile& profile, MemoryModel memory_model) {
  set_framework(profile, memory_model);
  measure_host(profile);
}

}  // namespace shardplan
