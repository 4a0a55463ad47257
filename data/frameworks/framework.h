// Options of framework profiles that a user may set.
#pragma once

#include <string>
#include <vector>

#include "data/read/json_reader.h"
#include "data/read/library.h"
#include "estimator/plan/framework_profile.h"

namespace shardplan {

std::vector<ProfileOption> profile_options(const Library& library, const std::string& framework);
std::vector<ProfileOption> profile_plan_defaults(const Library& library,
                                                 const std::string& framework);

// Applies options (a JSON object of a case line, or key=value words of the command line) to a
// profile; unknown names and wrong types are InputErrors that list what exists. `where` opens them.
void apply_options(FrameworkProfile& profile, const JsonValue& options, const std::string& file,
                   const Library& library);
void apply_option(FrameworkProfile& profile, const std::string& name, const std::string& word,
                  const Library& library, const std::string& where = "");

// Sets an option of the profile, or finds that it has this value already; else the reason why not.
// `options`: profile_options of the profile.
std::string try_option(FrameworkProfile& profile, const std::string& name, const std::string& word,
                       const std::vector<ProfileOption>& options);
std::string try_option(FrameworkProfile& profile, const std::string& name, const std::string& word,
                       const Library& library);

}  // namespace shardplan
