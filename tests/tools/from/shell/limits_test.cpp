// Scripts made to exhaust their reader, and numbers at the ends of 64 bits.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/data/message_of.h"
#include "tests/tools/from/script_values.h"
#include "tools/from/shell/read_shell.h"
#include "tools/from/shell/words.h"

namespace shardplan {
namespace {

// The words of all commands, one command a line.
std::string commands_of(const std::string& text) {
  std::string all;
  for (const ShellCommand& command : read_shell(text, "x.sh").commands) {
    for (const std::string& word : command.words) { all += word + " "; }
    all += "\n";
  }
  return all;
}

std::string repeated(int times, const std::string& text) {
  std::string all;
  for (int i = 0; i < times; ++i) { all += text; }
  return all;
}

}  // namespace

TEST_CASE("what stands too deep within itself is refused, whatever it is") {
  constexpr int kTimes = 10'000;
  const std::vector<std::pair<std::string, std::string>> each = {{"if a; then ", "; fi"},
                                                                 {"for i in 1; do ", "; done"},
                                                                 {"while a; do ", "; done"},
                                                                 {"case x in x) ", ";; esac"},
                                                                 {"{ ", "; }"},
                                                                 {"( ", ")"},
                                                                 {"f() { ", "; }"},
                                                                 {"until a; do ", "; done"},
                                                                 {"for ((;;)); do ", "; done"},
                                                                 {"a $(", ")"},
                                                                 {"X=$(( (", ") ))"},
                                                                 {"X=${X:-", "}"},
                                                                 {"if false; then ", "; fi"}};
  for (const auto& ends : each) {
    const std::string text = repeated(kTimes, ends.first) + "a" + repeated(kTimes, ends.second);
    const std::string message = message_of([&] { commands_of(text); });
    CHECK_MESSAGE(message.find("x.sh:1: found ") == 0, ends.first << message);
    CHECK_MESSAGE(message.find("within each other, expected fewer") != std::string::npos,
                  ends.first << message);
  }
  for (const std::string operation : {"1?", "1**", "(", "-", "x=", "!"}) {
    const std::string text = "X=$((" + repeated(kTimes, operation) + "1))";
    CHECK_MESSAGE(message_of([&] {
                    commands_of(text);
                  }).find("x.sh:1: found too many expressions within each other") == 0,
                  operation);
  }
}

TEST_CASE("what stands as deep as a script may is followed") {
  const auto within = [](int times, const std::string& opening, const std::string& closing) {
    return repeated(times, opening) + "a" + repeated(times, closing);
  };
  CHECK(commands_of(within(200, "if true; then ", "; fi")) == "a \n");
  CHECK(commands_of(within(200, "for i in 1; do ", "; done")) == "a \n");
  CHECK(commands_of(within(40, "( ", ")")) == "a \n");
  CHECK(commands_of("run $((1" + repeated(500, "+1") + "))") == "run 501 \n");
  CHECK(commands_of("run $((" + within(10, "(", ")+1") + "))\n").find("run $((") == 0);
  CHECK(commands_of("a=1; run $((" + within(10, "(", ")+1") + "))\n") == "run 11 \n");
}

TEST_CASE("what would take hours is refused, or followed at once") {
  const std::string letters = "A=" + repeated(100'000, "a") + "\n";
  const auto is_refused = [](const std::string& script) {
    return message_of([&] { commands_of(script); }).find("too long to follow") != std::string::npos;
  };
  CHECK(is_refused(letters + "B=${A##*c}"));
  CHECK(value_behind(letters + "P=${A//a/}") == "");
  CHECK(value_behind(letters + "B=${A//a/bc}; P=${#B}") == "200000");
  CHECK(value_behind("[[ " + repeated(60, "a") + " =~ (a*)*(a*)*b ]] || P=no") == "no");
  CHECK(value_behind("[[ aab =~ ^(a*)*b$ ]] && P=yes") == "yes");
  CHECK(commands_of(repeated(50'000, "a[\n")).size() == 200'000);
}

TEST_CASE("an entry may stand in what is taken instead of it") {
  CHECK(value_behind("L=(a b); P=${L[1]:-${L[1]}}") == "b");
  CHECK(value_behind("L=(a); P=${L[1]:-${L[1]:-c}}") == "c");
  CHECK(value_behind("L=(a b); P=${L[1]:=${L[1]:+d}}") == "b");
}

TEST_CASE("the keys of a list follow its values, whatever puts those back") {
  CHECK(value_behind("L=(x y z); L[5]=w a; L[7]=v; P=${!L[@]}") == "0 1 2 7");
  CHECK(value_behind("L=([5]=w); unset L[5]; L=x; L[2]=y; P=${!L[@]}") == "0 2");
  CHECK(value_behind("L=([5]=w); unset L[5]; : ${L:=x}; L[3]=y; P=${!L[@]}") == "0 3");
}

TEST_CASE("numbers at the ends of 64 bits end no loop and no list in an overflow") {
  CHECK(is_unknown("for i in {-9223372036854775807..9223372036854775807}; do P=$i; done"));
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"for i in {9223372036854775806..9223372036854775807}; do P=$i; done", "9223372036854775807"},
      {"for i in {-9223372036854775807..-9223372036854775806}; do P=$i; done",
       "-9223372036854775806"},
      {"P=$(seq 9223372036854775807 9223372036854775807)", "9223372036854775807"},
      {"P=\"$(seq 1 -9223372036854775807)\"", ""},
      {"L[9223372036854775807]=x; L+=(y); P=${L[9223372036854775807]}", "y"},
      {"L=([9223372036854775807]=x y); P=${L[9223372036854775807]}", "y"}};
  for (const auto& each : cases) {
    CHECK_MESSAGE(value_behind(each.first) == each.second, each.first);
  }
  CHECK(is_unknown("P=$(seq -9223372036854775807 9223372036854775807)"));
}

TEST_CASE("a variable whose value names it again and again is not reckoned without end") {
  CHECK(is_unknown("A='A+A+A+A+A+A+A+A'; P=$((A))"));
}

}  // namespace shardplan
