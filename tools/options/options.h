// The command line: one table of options feeds parsing, range checks, help and did-you-mean.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/read/input_error.h"

namespace shardplan {

enum class OptionKind {
  kSwitch,  // takes no value
  kCount,   // an integer with an optional suffix: 4096, 4k, 4Ki
  kBytes,   // an amount of memory with its unit: 80GiB, 80GB
  kNumber,  // a decimal number from low to high
  kChoice,  // one of a list of words
  kText,    // anything that is not empty
};

struct OptionRow {
  std::string name = {};      // "tp", written --tp
  std::string argument = {};  // how help shows the value; empty for a switch
  std::string help = {};
  std::string group = {};                  // heading in help
  std::vector<std::string> commands = {};  // that accept it
  OptionKind kind = OptionKind::kText;
  std::int64_t low = 0;  // kCount, kBytes, kNumber
  std::int64_t high = 0;
  std::vector<std::string> choices = {};  // kChoice
  std::vector<std::string> words = {};    // kNumber: that stand for no number
  bool repeatable = false;
  bool is_output = false;  // a file that is written
  bool is_input = false;   // a file that is read, or a name
};

// The group of the options that are fields of a Plan, each by the name of its field.
inline constexpr std::string_view kPlanGroup = "Plan";

std::vector<const OptionRow*> options_of(std::string_view command);

// A parsed command line. Every value was checked against its row.
struct Options {
  std::string command;
  std::map<std::string, std::vector<std::string>> values;
  std::vector<std::string> positional;
  std::int64_t least_ranks = 0;  // that the run's log shows; how many GPUs there are where neither
                                 // an option nor the run's launcher says so. 0: no log shows any
};

// Throws InputError: unknown options (with a did-you-mean), missing values, values out of range,
// options given twice, two outputs into one file, an output into a file that is read or whose name
// ends as another format's. Names are never completed from a prefix.
Options parse_options(std::string_view command, const std::vector<std::string>& arguments);

bool given(const Options& options, std::string_view name);
std::int64_t count_or(const Options& options, std::string_view name, std::int64_t fallback);
double number_or(const Options& options, std::string_view name, double fallback);
std::string text_or(const Options& options, std::string_view name, const std::string& fallback);
// Values of a repeatable option, in order.
std::vector<std::string> all_of(const Options& options, std::string_view name);
// InputError if the option is missing, which names all that are.
std::string required_text(const Options& options, std::string_view name);

// Of two words that set one thing the other would be dropped silently. `place`: "--set tp=4".
InputError second_word(std::string place, const std::string& key, const std::string& expected);

// Adds --name value to what was parsed, checked against its row; InputError if it is there already.
void add_option(Options& options, const std::string& name, std::string value);

// InputError if words stand on the command line that no option takes.
void refuse_positional(const Options& options);

}  // namespace shardplan
