// Runs' files made to exhaust their reader or its library.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/data/message_of.h"
#include "tools/from/toml.h"
#include "tools/from/yaml.h"

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

Words values_of(const RunSettings& settings, const std::string& name) {
  const auto found = std::ranges::find(settings.arguments, name, &Setting::name);
  return found == settings.arguments.end() ? Words{"(none)"} : found->values;
}

}  // namespace

TEST_CASE("letters outside ASCII stand in a .toml's strings and comments only") {
  const std::vector<std::string> wrong = {"é = 1",
                                          "[é]",
                                          "b = é",
                                          "b = 1 é",
                                          "b = '''é''''' é",
                                          R"(b = """"""é)",
                                          "b = 'é\\'é",
                                          R"(b = "" é)",
                                          R"(b = 0"""é"""")",
                                          "b'é' = 1",
                                          "\xff"};
  for (const std::string& text : wrong) {
    const std::string message = message_of([&] { settings_from_toml("[a]\n" + text, "c.toml"); });
    CHECK_MESSAGE(message.find("c.toml:2: found a letter outside ASCII") == 0, text);
  }
  const RunSettings settings = settings_from_toml(
      "\xef\xbb\xbf[a] # é \"\n'é' = 'é\\' # é\nb = \"\\\"é\"\nc = \"\"\"é\n\"\"é\\\"\"\"\"\"\n"
      "d = '''é\n''é\\'''''\ne = \"\"\nf = \"\"\"\"\"\" # é\n",
      "c.toml");
  REQUIRE(settings.arguments.size() == 6);
  CHECK(values_of(settings, "a.é") == Words{"é\\"});
  CHECK(values_of(settings, "a.b") == Words{"\"é"});
  CHECK(values_of(settings, "a.c") == Words{"é\n\"\"é\"\""});
  CHECK(values_of(settings, "a.d") == Words{"é\n''é\\''"});
}

TEST_CASE("aliases that stand for more settings than any file has are refused") {
  const auto aliases = [](const std::string& keys) {
    std::string text = "a0: &a0 {x: 1}\n";
    for (int i = 1; i < 8; ++i) {  // ten times the one before it
      text.append("a").append(std::to_string(i)).append(": &a").append(std::to_string(i));
      text.append(" {x: 1");
      for (int k = 0; k < 10; ++k) {
        text.append(", ").append(keys.empty() ? "k" + std::to_string(k) : keys);
        text.append(": *a").append(std::to_string(i - 1));
      }
      text.append("}\n");
    }
    return text;
  };
  for (const std::string& each :
       {aliases("<<") + "MODEL_ARGS: *a7\n", aliases("") + "parallelism: {dp: 1}\ntokens: *a7\n"}) {
    CHECK(message_of([&] {
            settings_from_yaml(each, "c.yaml");
          }).find("found more than 262144 settings, aliases taken as what they stand for") !=
          std::string::npos);
  }
}

}  // namespace shardplan
