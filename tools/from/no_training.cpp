// Why a launch script starts no training that can be read.
#include "tools/from/script_reader.h"

#include <set>

#include "tools/from/script_words.h"
#include "tools/from/shell/program.h"

namespace shardplan {

InputError ScriptReader::no_training(const ShellScript& script) const {
  if (const std::string other = other_trainer(script); !other.empty()) {
    return InputError(file_ + ": found " + other);
  }
  std::set<std::string> missing;
  for (const ShellChoice& choice : script.choices) {
    missing.insert(choice.missing.begin(), choice.missing.end());
  }
  missing.erase("*");  // all arguments: --set gives one at a time
  missing.erase("@");
  std::string text = file_ + ": found no command that starts a .py file with arguments, ";
  if (request_.line > 0) {
    text += "in line " + std::to_string(request_.line) + ", ";
  }
  if (!script.exits_at.empty()) {
    text = script.exits_at + ": found that the script exits here, before it trains, ";
  }
  if (!missing.empty()) {
    return InputError(text + "where nothing sets " + listed(missing) + "; expected " +
                      set_of(*missing.begin()));
  }
  if (!script.exits_at.empty()) {
    return InputError(text +
                      "expected its first argument, --set 1=VALUE, or --set NAME=VALUE of "
                      "what it checks");
  }
  if (!script.unread.empty()) {
    return InputError(text + "and did not find the file of " + script.unread.front() +
                      "; expected it beside this one");
  }
  return InputError(text +
                    "expected one such as torchrun --nproc_per_node 8 pretrain_gpt.py "
                    "--num-layers 32 ...");
}

}  // namespace shardplan
