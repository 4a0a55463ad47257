#include "data/read/json_reader.h"

#include <doctest/doctest.h>

#include <ctime>
#include <limits>
#include <string>

#include "data/read/json_message.h"
#include "tests/data/message_of.h"

namespace shardplan {
namespace {

std::string refusal(std::string_view text) {
  return message_of([&] { parse_json(text, "x.json"); });
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::string repeated(std::string_view unit, std::int64_t times) {
  std::string text;
  text.reserve(unit.size() * static_cast<std::size_t>(times));
  for (std::int64_t i = 0; i < times; ++i) { text += unit; }
  return text;
}

// The promise of a second is about the released program, not about one under sanitizers.
#ifdef NDEBUG
constexpr double kBombLimitSeconds = 1.0;
#else
constexpr double kBombLimitSeconds = std::numeric_limits<double>::infinity();
#endif

// Processor seconds: the machine may be busy with something else.
double processor_s() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

TEST_CASE("a parsed value keeps kind, content, pointer and line of every part") {
  const JsonValue root = parse_json(
      "{\n"
      "  \"plan\": {\"tp\": 8,\n"
      "    \"a/b~c\": [null, true,\n"
      "      -1.5e3,\n"
      "      \"d\\u00e9j\\u00e0\"]},\n"
      "  \"n\": 9223372036854775807\n"
      "}",
      "x.json");
  REQUIRE(root.kind == JsonKind::kObject);
  CHECK(root.pointer == "");
  CHECK(root.line == 1);
  REQUIRE(root.members.size() == 2);
  CHECK(root.members[0].name == "plan");
  const JsonValue& plan = root.members[0].value;
  CHECK(plan.line == 2);
  CHECK(plan.members[0].value.integer == 8);
  CHECK(plan.members[0].value.real == 8.0);
  CHECK(plan.members[0].value.pointer == "/plan/tp");
  CHECK(plan.members[0].value.line == 2);
  const JsonValue& list = plan.members[1].value;
  CHECK(list.pointer == "/plan/a~1b~0c");
  REQUIRE(list.items.size() == 4);
  CHECK(list.items[0].kind == JsonKind::kNull);
  CHECK(list.items[1].boolean);
  CHECK(list.items[1].line == 3);
  CHECK(list.items[2].kind == JsonKind::kReal);
  CHECK(list.items[2].real == -1500.0);
  CHECK(list.items[2].line == 4);
  CHECK(list.items[2].pointer == "/plan/a~1b~0c/2");
  CHECK(list.items[3].string == "d\xc3\xa9j\xc3\xa0");
  CHECK(root.members[1].value.integer == std::numeric_limits<std::int64_t>::max());
  // A number at the end of a line is read one character too far; its line is still its own.
  CHECK(root.members[1].value.line == 6);
}

TEST_CASE("scalars at the root are JSON too") {
  CHECK(parse_json("7", "x.json").integer == 7);
  CHECK(parse_json(" \"a\" \n", "x.json").string == "a");
  CHECK(parse_json("-9223372036854775808", "x.json").integer ==
        std::numeric_limits<std::int64_t>::min());
}

TEST_CASE("broken text is refused with the line, what was found and what was expected") {
  CHECK(refusal("") == "x.json:1: found an empty text, expected JSON");
  CHECK(refusal(" \n\t ") == "x.json:1: found an empty text, expected JSON");
  CHECK(refusal("{\"a\": 1\n\"b\": 2}") == "x.json:2: /a: found string literal, expected '}'");
  CHECK(refusal("{\"a\": [1, 2}") == "x.json:1: /a/2: found '}', expected ']'");
  CHECK(refusal("{\"a\":\n\n nul}") == "x.json:3: /a: found nul, expected JSON (invalid literal)");
  CHECK(contains(refusal("[1,\n 2"), "x.json:2: /2: found end of input, expected ']'"));
  CHECK(contains(refusal("{} {}"), "x.json:1: found '{', expected end of input"));
  CHECK(contains(refusal("{\"a\": 01}"), "found number literal"));
  CHECK(contains(refusal("[1,]"), "found ']', expected"));
  CHECK(contains(refusal("// no comments\n{}"), "invalid literal"));
  CHECK(contains(refusal("{'a': 1}"), "x.json:1: "));
  CHECK(refusal("{\"a\": 0x10}") == "x.json:1: /a: found x, expected JSON (invalid literal)");
  CHECK(contains(refusal("[NaN]"), "x.json:1: /0: found N"));
  CHECK(contains(refusal("[Infinity]"), "x.json:1: /0: found I"));
  CHECK(contains(refusal("[\"a\nb\"]"), "control character"));
}

TEST_CASE("bytes that are not UTF-8 are refused and do not reach the message") {
  const std::string message = refusal("{\"a\": \"x\xff\"}");
  CHECK(contains(message, "x.json:1: /a: found \"x?, expected JSON"));
  CHECK(contains(message, "ill-formed UTF-8"));
  CHECK_FALSE(contains(message, "\xff"));
  CHECK(contains(refusal("[\"\\ud800\"]"), "surrogate"));
}

TEST_CASE("integers that do not fit 64 bits are refused, never rounded to a double") {
  CHECK(refusal("{\"a\": 9223372036854775808}") ==
        "x.json:1: /a: found integer 9223372036854775808, expected one between -2^63 and 2^63 - 1");
  CHECK(contains(refusal("[18446744073709551616]"), "/0: found integer 18446744073709551616"));
  CHECK(contains(refusal("[-9223372036854775809]"), "/0: found integer -9223372036854775809"));
  CHECK(contains(refusal(repeated("9", 400)), "found 999"));
  CHECK(refusal("[1e999]") ==
        "x.json:1: /0: found 1e999, expected a number that a double can hold");
  CHECK(parse_json("1e300", "x.json").real == 1e300);
}

TEST_CASE("a key given twice is refused with both lines, at every level") {
  CHECK(refusal("{\"a\": 1,\n\"b\": {\"tp\": 1,\n\"x\": 2,\n\"tp\": 1}}") ==
        "x.json:4: /b: found key \"tp\" twice (first on line 2), expected every key once");
  CHECK(contains(refusal("{\"a\": 1, \"\\u0061\": 2}"), "found key \"a\" twice"));
  CHECK(refusal("[{\"a\": 1}, {\"a\": 1}]") == "no error");
}

TEST_CASE("64 levels of nesting are read and 65 are refused, in arrays and objects alike") {
  CHECK(refusal(repeated("[", 64) + repeated("]", 64)) == "no error");
  CHECK(contains(refusal(repeated("[", 65) + repeated("]", 65)), "nested deeper than 64"));
  CHECK(refusal(repeated("{\"a\":", 63) + "{}" + repeated("}", 63)) == "no error");
  CHECK(contains(refusal(repeated("{\"a\":", 65) + "1" + repeated("}", 65)), "deeper than 64"));
}

void check_refused_quickly(const std::string& bomb) {
  const double start_s = processor_s();
  const std::string message = refusal(bomb);
  CHECK(message != "no error");
  CHECK(message.size() < 400);
  CHECK(processor_s() - start_s < kBombLimitSeconds);
}

TEST_CASE("bombs are refused in under a second: a million levels, 64 MiB of breadth") {
  const std::int64_t bytes = kMaxJsonBytes;
  const std::string zeros = repeated("0,", 10'000);
  const std::string arrays = repeated("[],", 10'000);
  const std::string members = repeated("\"\":0,", 10'000);
  check_refused_quickly(repeated("[", 1'000'000));
  check_refused_quickly(repeated("{\"a\":", 1'000'000));
  check_refused_quickly(repeated("[", 1) + repeated(zeros, bytes / std::ssize(zeros) - 1));
  check_refused_quickly(repeated("[", 1) + repeated(arrays, bytes / std::ssize(arrays) - 1));
  check_refused_quickly(repeated("{", 1) + repeated(members, bytes / std::ssize(members) - 1));
  check_refused_quickly(std::string("\"").append(static_cast<std::size_t>(bytes - 1), 'x'));
  check_refused_quickly(std::string(static_cast<std::size_t>(bytes - 1), ' ') + "1");
  check_refused_quickly(std::string(static_cast<std::size_t>(bytes + 1), ' '));
  // A long key over many items: the pointers of the items must not repeat it.
  check_refused_quickly(repeated("{\"", 1) + std::string(1'000'000, 'k') + "\":[" +
                        repeated("0,", 900'000));
}

TEST_CASE("a two-hundred-byte path is shown as far as it goes") {
  const std::string key(190, 'k');
  std::string text = "{\"KEY\": {\"KEY\": [0]}}";
  text.replace(text.rfind("KEY"), 3, key).replace(text.find("KEY"), 3, key);
  const JsonValue root = parse_json(text, "x.json");
  const JsonValue& inner = root.members[0].value.members[0].value;
  CHECK(inner.pointer == root.members[0].value.pointer + "/...");
  CHECK(inner.items[0].pointer == inner.pointer);
}

TEST_CASE("getters return what stands there") {
  const JsonValue root =
      parse_json(R"({"i": 3, "x": 1.5, "b": true, "s": "t", "v": [1], "n": null})", "x.json");
  ObjectReader reader(root, "x.json");
  CHECK(reader.integer("i", 1, 3) == 3);
  CHECK(reader.number("x", 0, 2) == 1.5);
  CHECK(reader.number("i", 0, 3) == 3.0);
  CHECK(reader.boolean("b"));
  CHECK(reader.string("s") == "t");
  CHECK(reader.value("v").items.size() == 1);
  CHECK(reader.has("n"));
  CHECK(reader.is_null("n"));
  CHECK_FALSE(reader.is_null("i"));
  CHECK_FALSE(reader.has("absent"));
  CHECK(reader.remaining() == std::vector<std::string>{"n"});
  CHECK(reader.integer_or("n", 7, 0, 9) == 7);
  CHECK_NOTHROW(reader.finish());
}

TEST_CASE("optional members fall back when absent or null and are still checked when there") {
  const JsonValue root = parse_json(R"({"n": null, "i": 3, "s": 4})", "x.json");
  ObjectReader reader(root, "x.json");
  CHECK(reader.integer_or("absent", 5, 0, 9) == 5);
  CHECK(reader.number_or("n", 2.5, 0, 9) == 2.5);
  CHECK(reader.boolean_or("n", true));
  CHECK(reader.string_or("absent", "word") == "word");
  CHECK(message_of([&] { reader.integer_or("i", 5, 4, 9); }) ==
        "x.json:1: /i: found integer 3, expected an integer from 4 to 9");
  CHECK(message_of([&] { reader.string_or("s", "word"); }) ==
        "x.json:1: /s: found integer 4, expected a string");
}

TEST_CASE("nothing is narrowed: a bool, a real and a string are no integer") {
  const JsonValue root =
      parse_json("{\"b\": true,\n\"x\": 8.0,\n\"s\": \"8\",\n\"big\": 99999999999}", "x.json");
  ObjectReader reader(root, "x.json");
  const std::int64_t high = std::numeric_limits<std::int64_t>::max();
  CHECK(message_of([&] { reader.integer("b", 1, 9); }) ==
        "x.json:1: /b: found true, expected an integer from 1 to 9");
  CHECK(message_of([&] { reader.integer("x", 1, high); }) ==
        "x.json:2: /x: found number 8, expected an integer >= 1");
  CHECK(message_of([&] { reader.integer("s", 1, 9); }) ==
        "x.json:3: /s: found string \"8\", expected an integer from 1 to 9");
  CHECK(message_of([&] { reader.integer("big", 1, 1 << 20); }) ==
        "x.json:4: /big: found integer 99999999999, expected an integer from 1 to 1048576");
  CHECK(message_of([&] { reader.boolean("x"); }) ==
        "x.json:2: /x: found number 8, expected true or false");
  CHECK(message_of([&] { reader.number("b", 0, 1); }) ==
        "x.json:1: /b: found true, expected a number from 0 to 1");
  CHECK(message_of([&] { reader.integer("absent", 1, 9); }) ==
        "x.json:1: /absent: found nothing, expected an integer from 1 to 9");
}

TEST_CASE("finish refuses the first key that nobody took and suggests the nearest known one") {
  const JsonValue root = parse_json("{\"tp\": 1,\n \"sequence_lenght\": 2, \"z\": 3}", "x.json");
  ObjectReader reader(root, "x.json");
  reader.ignore("tp");
  reader.integer_or("sequence_length", 1, 1, 9);
  CHECK(message_of([&] { reader.finish(); }) ==
        "x.json:2: /sequence_lenght: found an unknown key, expected a known one (did you mean "
        "\"sequence_length\"?)");
}

TEST_CASE("only an object can be read member by member") {
  const JsonValue root = parse_json("[1, 2]", "x.json");
  CHECK(message_of([&] { ObjectReader(root, "x.json"); }) ==
        "x.json:1: found an array of 2, expected an object");
}

TEST_CASE("descriptions name kind and value and cut long text between characters") {
  CHECK(describe(parse_json("null", "x")) == "null");
  CHECK(describe(parse_json("1e-3", "x")) == "number 0.001");
  CHECK(describe(parse_json("{\"a\": 1}", "x")) == "an object of 1");
  CHECK(describe(parse_json("\"a\\u0007\\tb\"", "x")) == "string \"a??b\"");
  const std::string letters(59, 'a');
  const std::string cut = describe(parse_json(repeated("\"", 1) + letters + "\xc3\xa9z\"", "x"));
  CHECK(cut == repeated("string \"", 1) + letters + "...\"");
}

TEST_CASE("names that begin with a word are meant before names that are spelled like it") {
  const std::vector<std::string> names = {"--set", "--sequence-length", "--sequence-parallel",
                                          "--recompute"};
  CHECK(suggestion("--seq", names) ==
        "; did you mean \"--sequence-length\" or \"--sequence-parallel\"?");
  CHECK(suggestion("--rec", names) == "; did you mean \"--recompute\"?");
  CHECK(suggestion("--se", names) == "; did you mean \"--set\"?");
  CHECK(suggestion("--sequence-lenght", names) == "; did you mean \"--sequence-length\"?");
  CHECK(suggestion("--other", names).empty());
}

TEST_CASE("the nearest name is found within two steps, three for long words") {
  const std::vector<std::string> names = {"tp", "pp", "llama3-8b", "mistral-7b", "sequence_length"};
  CHECK(nearest_name("lama3-8b", names) == "llama3-8b");
  CHECK(nearest_name("llama3-b8", names) == "llama3-8b");  // a swap is one step
  CHECK(nearest_name("seqence_lenght", names) == "sequence_length");
  CHECK(nearest_name("tp", names) == "tp");
  CHECK(nearest_name("tpp", names) == "tp");
  CHECK(nearest_name("xy", names).empty());
  CHECK(nearest_name("llama3-70b-instruct", names).empty());
  CHECK(nearest_name(std::string(1'000'000, 'a'), names).empty());
  CHECK(nearest_name("", names).empty());
}

}  // namespace
}  // namespace shardplan
