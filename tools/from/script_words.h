// Variables of a script in the words of messages.
#pragma once

#include <set>
#include <string>

namespace shardplan {

std::string listed(const std::set<std::string>& names);

// What gives a variable; "$2" is an argument of the script, whose caller may be a script too.
std::string set_of(const std::string& name);

}  // namespace shardplan
