#include "tools/export/own_configuration.h"

#include <algorithm>

namespace shardplan {
namespace {

// The lines of a section, from behind its heading to the next one: [begin, end).
struct Section {
  std::size_t begin = std::string::npos;  // npos: it is not there
  std::size_t end = 0;
};
Section section_of(const std::string& text, const std::string& title) {
  const std::string heading = "[" + title + "]";
  std::size_t at = text.starts_with(heading) ? 0 : text.find("\n" + heading);
  if (at == std::string::npos) {
    return {};
  }
  const std::size_t begin = std::min(text.find('\n', at + (at == 0 ? 0 : 1)), text.size() - 1) + 1;
  const std::size_t next = text.starts_with('[') && begin == 0 ? 0 : text.find("\n[", begin - 1);
  return {.begin = begin, .end = next == std::string::npos ? text.size() : next + 1};
}

// Where the value of a key begins and ends on its line, its comment apart; begin npos: no such key.
Section value_of_key(const std::string& text, const Section& section, const std::string& key) {
  for (std::size_t line = section.begin; line < section.end;
       line = std::min(text.find('\n', line), text.size() - 1) + 1) {
    const std::size_t name = text.find_first_not_of(" \t", line);
    if (name == std::string::npos || text.compare(name, key.size(), key) != 0) {
      continue;
    }
    const std::size_t equals = text.find_first_not_of(" \t", name + key.size());
    if (equals == std::string::npos || text[equals] != '=') {
      continue;
    }
    const std::size_t begin = text.find_first_not_of(" \t", equals + 1);
    std::size_t end = std::min(text.find_first_of("#\n", begin), text.size());
    while (end > begin && (text[end - 1] == ' ' || text[end - 1] == '\t')) { --end; }
    return {.begin = begin, .end = end};
  }
  return {};
}

void set_key(std::string& text, const std::string& title, const ExportedArgument& key) {
  const std::string& value = key.values.front();
  Section section = section_of(text, title);
  if (section.begin == std::string::npos) {
    text += (text.ends_with('\n') || text.empty() ? "" : "\n") + ("\n[" + title + "]\n");
    section = {.begin = text.size(), .end = text.size()};
  }
  const Section old = value_of_key(text, section, key.name);
  if (old.begin != std::string::npos) {
    text.replace(old.begin, old.end - old.begin, value);
  } else {
    text.insert(section.begin, key.name + " = " + value + "\n");
  }
}

// nullptr where no section has it.
const ExportedArgument* find_key(const std::vector<ArgumentGroup>& sections,
                                 const std::string& title, const std::string& name) {
  for (const ArgumentGroup& section : sections) {
    for (const ExportedArgument& key : section.arguments) {
      if (section.title == title && key.name == name) {
        return &key;
      }
    }
  }
  return nullptr;
}

}  // namespace

std::string edited_configuration(std::string text, const std::vector<ArgumentGroup>& before,
                                 const std::vector<ArgumentGroup>& after) {
  for (const ArgumentGroup& section : after) {
    for (const ExportedArgument& key : section.arguments) {
      const ExportedArgument* const old = find_key(before, section.title, key.name);
      if (old == nullptr || old->values != key.values) {
        set_key(text, section.title, key);
      }
    }
  }
  return text;
}

}  // namespace shardplan
