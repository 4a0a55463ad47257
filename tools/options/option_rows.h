// Rows of the option table by kind of option, and those of the commands that run and measure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/options/options.h"

namespace shardplan {

OptionRow count(const char* name, const char* help, std::int64_t low, std::int64_t high);
OptionRow text(const char* name, const char* argument, const char* help);
OptionRow output_file(const char* name, const char* help);
OptionRow input_file(const char* name, const char* argument, const char* help);
OptionRow choice(const char* name, const char* help, std::vector<std::string> choices);
OptionRow number(const char* name, const char* help, std::int64_t low, std::int64_t high);
OptionRow repeated(OptionRow row);
OptionRow flag(const char* name, const char* help);

std::vector<OptionRow> accuracy_rows();
std::vector<OptionRow> validate_rows();
std::vector<OptionRow> calibrate_rows();

}  // namespace shardplan
