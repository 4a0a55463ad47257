// Framework profiles: a file selects behaviours and gives numbers; its options are the fields of
// FrameworkProfile that a user may set.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <variant>

#include "data/json_message.h"
#include "data/library.h"
#include "data/run_settings.h"

namespace shardplan {

namespace {

using Member = std::variant<bool FrameworkProfile::*, std::int64_t FrameworkProfile::*,
                            double FrameworkProfile::*, SwigluKind FrameworkProfile::*,
                            CrossEntropyKind FrameworkProfile::*, AllocatorKind FrameworkProfile::*,
                            Schedule FrameworkProfile::*, CpMethod FrameworkProfile::*,
                            DType FrameworkProfile::*, ReshardAfterForward FrameworkProfile::*,
                            AttentionBackend FrameworkProfile::*, MoeDispatcher FrameworkProfile::*,
                            TpOverlap FrameworkProfile::*, CpOverlap FrameworkProfile::*>;

// Every field that a profile's file sets, by its own name.
struct ProfileField {
  std::string_view name;
  Member member;
};
constexpr std::array kProfileFields = std::to_array<ProfileField>({
    {"swiglu", &FrameworkProfile::swiglu},
    {"cross_entropy", &FrameworkProfile::cross_entropy},
    {"gradient_accumulation_fusion", &FrameworkProfile::gradient_accumulation_fusion},
    {"dummy_weight_gradients", &FrameworkProfile::dummy_weight_gradients},
    {"overlap_grad_reduce", &FrameworkProfile::overlap_grad_reduce},
    {"overlap_param_gather", &FrameworkProfile::overlap_param_gather},
    {"eager_communicators", &FrameworkProfile::eager_communicators},
    {"deterministic_attention", &FrameworkProfile::deterministic_attention},
    {"attention_backend", &FrameworkProfile::attention_backend},
    {"attention_mask", &FrameworkProfile::attention_mask},
    {"moe_dispatcher", &FrameworkProfile::moe_dispatcher},
    {"moe_grouped_gemm", &FrameworkProfile::moe_grouped_gemm},
    {"torch_workspace_bytes", &FrameworkProfile::torch_workspace_bytes},
    {"deallocate_pipeline_outputs", &FrameworkProfile::deallocate_pipeline_outputs},
    {"fused_optimizer", &FrameworkProfile::fused_optimizer},
    {"compile", &FrameworkProfile::compile},
    {"compile_loss", &FrameworkProfile::compile_loss},
    {"root_holds_ends", &FrameworkProfile::root_holds_ends},
    {"reshard_after_forward", &FrameworkProfile::reshard_after_forward},
    {"account_for_embedding_in_split", &FrameworkProfile::account_for_embedding_in_split},
    {"account_for_loss_in_split", &FrameworkProfile::account_for_loss_in_split},
    {"cross_entropy_chunks", &FrameworkProfile::cross_entropy_chunks},
    {"tensor_parallel_chunk_tokens", &FrameworkProfile::tensor_parallel_chunk_tokens},
    {"microbatch_group_size", &FrameworkProfile::microbatch_group_size},
    {"recompute_allgather", &FrameworkProfile::recompute_allgather},
    {"reduce_bucket_elements", &FrameworkProfile::reduce_bucket_elements},
    {"prefetch_bucket_elements", &FrameworkProfile::prefetch_bucket_elements},
    {"max_live_parameters", &FrameworkProfile::max_live_parameters},
    {"moe_imbalance_factor", &FrameworkProfile::moe_imbalance_factor},
    {"moe_capacity_factor", &FrameworkProfile::moe_capacity_factor},
    {"vocab_multiple", &FrameworkProfile::vocab_multiple},
    {"fixed_allocated_bytes", &FrameworkProfile::fixed_allocated_bytes},
    {"fixed_workspace_bytes", &FrameworkProfile::fixed_workspace_bytes},
    {"allocator", &FrameworkProfile::allocator},
    {"cross_entropy_bytes_per_logit", &FrameworkProfile::cross_entropy_bytes_per_logit},
    {"default_zero", &FrameworkProfile::default_zero},
    {"default_sequence_parallel", &FrameworkProfile::default_sequence_parallel},
    {"default_pipeline_schedule", &FrameworkProfile::default_pipeline_schedule},
    {"default_grad_dtype", &FrameworkProfile::default_grad_dtype},
    {"default_cp_method", &FrameworkProfile::default_cp_method},
    {"exposed_tp_share", &FrameworkProfile::exposed_tp_share},
    {"exposed_cp_share", &FrameworkProfile::exposed_cp_share},
    {"exposed_ep_share", &FrameworkProfile::exposed_ep_share},
    {"exposed_pp_share", &FrameworkProfile::exposed_pp_share},
    {"exposed_dp_share", &FrameworkProfile::exposed_dp_share},
    {"tp_overlap", &FrameworkProfile::tp_overlap},
    {"tp_overlap_pieces", &FrameworkProfile::tp_overlap_pieces},
    {"cp_overlap", &FrameworkProfile::cp_overlap},
    {"overlap_p2p_comm", &FrameworkProfile::overlap_p2p_comm},
    {"overlap_moe_expert_parallel_comm", &FrameworkProfile::overlap_moe_expert_parallel_comm},
    {"scatter_gather_sends", &FrameworkProfile::scatter_gather_sends},
    {"handover_s", &FrameworkProfile::handover_s},
    {"zero1_all_reduces", &FrameworkProfile::zero1_all_reduces},
    {"attention_copies", &FrameworkProfile::attention_copies},
});

// Counts the fields of an aggregate: how many initializers it takes.
struct AnyValue {
  template <class T>
  operator T() const;
};
template <class T, class... Values>
consteval std::size_t num_fields() {
  if constexpr (requires { T{Values{}..., AnyValue{}}; }) {
    return num_fields<T, Values..., AnyValue>();
  } else {
    return sizeof...(Values);
  }
}
// name, version and memory_model have keys of their own in the file.
static_assert(num_fields<FrameworkProfile>() == kProfileFields.size() + 3,
              "a new field of FrameworkProfile needs a row in kProfileFields, and a declaration in "
              "the files under data/frameworks that use it");

const ProfileField* find_field(std::string_view name) {
  for (const ProfileField& field : kProfileFields) {
    if (field.name == name) {
      return &field;
    }
  }
  return nullptr;
}

std::string type_name(bool) {
  return "bool";
}
std::string type_name(std::int64_t) {
  return "integer";
}
std::string type_name(double) {
  return "number";
}
template <class Choice>
std::string type_name(Choice) {
  return "choice";
}

// The type of a field, as files and messages write it.
std::string type_of(const Member& member) {
  return std::visit([]<class Field>(Field FrameworkProfile::*) { return type_name(Field{}); },
                    member);
}

// "true", "8", "1.5", "te_fused"
std::string as_text(const JsonValue& value) {
  switch (value.kind) {
    case JsonKind::kBool: return value.boolean ? "true" : "false";
    case JsonKind::kInteger: return std::to_string(value.integer);
    case JsonKind::kReal: return exact_text(value.real);
    case JsonKind::kString: return value.string;
    default: return "";
  }
}

// What a value of this option must be, for messages.
std::string expected_of(const ProfileOption& option) {
  if (option.type == "bool") {
    return "true or false";
  }
  if (option.type == "choice") {
    return "one of " + joined(option.choices);
  }
  if (option.type == "integer") {
    return "an integer from " + std::to_string(std::llround(option.low)) + " to " +
           std::to_string(std::llround(option.high));
  }
  return "a number from " + exact_text(option.low) + " to " + exact_text(option.high);
}

bool accepts(const ProfileOption& option, const JsonValue& value) {
  if (option.type == "bool") {
    return value.kind == JsonKind::kBool;
  }
  if (option.type == "choice") {
    return value.kind == JsonKind::kString &&
           std::ranges::find(option.choices, value.string) != option.choices.end();
  }
  const bool is_number = value.kind == JsonKind::kInteger ||
                         (value.kind == JsonKind::kReal && option.type == "number");
  return is_number && value.real >= option.low && value.real <= option.high;
}

template <class Choice>
void assign(Choice& field, const JsonValue& value) {
  field = value_of<Choice>(value.string).value();
}
void assign(DType& field, const JsonValue& value) {
  field = dtype_named(value.string).value();
}
void assign(bool& field, const JsonValue& value) {
  field = value.boolean;
}
void assign(std::int64_t& field, const JsonValue& value) {
  field = value.integer;
}
void assign(double& field, const JsonValue& value) {
  field = value.real;
}

// The value must be one that the option accepts.
void set_field(FrameworkProfile& profile, const ProfileOption& option, const JsonValue& value) {
  std::visit([&](auto member) { assign(profile.*member, value); }, find_field(option.name)->member);
}

template <class Choice>
std::string text_of_value(Choice value) {
  return std::string(name_of(value));
}
std::string text_of_value(bool value) {
  return value ? "true" : "false";
}
std::string text_of_value(std::int64_t value) {
  return std::to_string(value);
}
std::string text_of_value(double value) {
  return exact_text(value);
}

// Words that an enum knows; a file may allow fewer.
template <class Choice>
bool knows(Choice, const std::string& word) {
  return value_of<Choice>(word).has_value();
}
bool knows(DType, const std::string& word) {
  return dtype_named(word).has_value();
}
bool knows(bool, const std::string&) {
  return false;
}
bool knows(std::int64_t, const std::string&) {
  return false;
}
bool knows(double, const std::string&) {
  return false;
}

// One declaration; `value_key` is "default" of an option, "value" of what is fixed.
ProfileOption read_declaration(const std::string& name, const JsonValue& declaration,
                               const char* value_key, const std::string& file,
                               FrameworkProfile& profile) {
  ObjectReader reader(declaration, file);
  const ProfileField* field = find_field(name);
  if (field == nullptr) {
    throw reader.error("", "found an unknown name, expected a field of the profile");
  }
  ProfileOption option;
  option.name = name;
  option.type = reader.string("type");
  if (option.type != type_of(field->member)) {
    throw reader.error(
        "type", "found \"" + option.type + "\", expected \"" + type_of(field->member) + "\"");
  }
  if (option.type == "choice") {
    option.choices = reader.strings("choices");
    for (const std::string& word : option.choices) {
      const bool known =
          std::visit([&]<class Field>(Field FrameworkProfile::*) { return knows(Field{}, word); },
                     field->member);
      if (!known) {
        throw reader.error("choices", "found \"" + word + "\", expected words of this choice");
      }
    }
  }
  if (option.type == "integer" || option.type == "number") {
    option.low = reader.number("low", -1e15, 1e15);
    option.high = reader.number("high", option.low, 1e15);
  }
  option.meaning = reader.string("meaning");
  option.source = reader.string("source");
  const JsonValue& value = reader.value(value_key);
  if (!accepts(option, value)) {
    throw reader.error(value_key, "found " + describe(value) + ", expected " + expected_of(option));
  }
  option.default_value = as_text(value);
  set_field(profile, option, value);
  reader.finish();
  return option;
}

struct ProfileFile {
  FrameworkProfile profile;
  std::vector<ProfileOption> options;
};

ProfileFile read_profile(const JsonFile& source) {
  ObjectReader reader(source.json, source.file);
  ProfileFile result;
  result.profile.name = reader.string("name");
  result.profile.version = reader.string("version");
  const std::string model = reader.string("memory_model");
  const std::optional<MemoryModel> memory_model = value_of<MemoryModel>(model);
  if (!memory_model) {
    throw reader.error("memory_model", "found \"" + model + "\", expected a known memory model");
  }
  result.profile.memory_model = *memory_model;
  reader.string("source");
  for (const auto& [name, declaration] : reader.value("options").members) {
    result.options.push_back(
        read_declaration(name, declaration, "default", source.file, result.profile));
  }
  for (const auto& [name, declaration] : reader.value("fixed").members) {
    read_declaration(name, declaration, "value", source.file, result.profile);
  }
  reader.finish();
  return result;
}

const ProfileOption& find_option(const std::vector<ProfileOption>& options, const std::string& name,
                                 const std::string& opening, const std::string& framework) {
  std::vector<std::string> names;
  for (const ProfileOption& option : options) {
    if (option.name == name) {
      return option;
    }
    names.push_back(option.name);
  }
  throw InputError(opening + "found unknown option \"" + shown(name, Encoding::kUnchecked) +
                   "\", expected " +
                   (names.empty() ? "none: profile " + framework + " has no options"
                                  : "an option of profile " + framework + ": " + joined(names)) +
                   suggestion(name, names));
}

// A word of the command line as the JSON value that a case line would hold.
JsonValue value_of_word(const ProfileOption& option, const std::string& word) {
  JsonValue value;
  value.kind = JsonKind::kString;
  value.string = word;
  if (option.type == "bool" && (word == "true" || word == "false")) {
    value.kind = JsonKind::kBool;
    value.boolean = word == "true";
  }
  const char* const end = word.data() + word.size();
  const auto is_whole = [&](const std::from_chars_result& read) {
    return !word.empty() && read.ec == std::errc{} && read.ptr == end;
  };
  if (option.type == "integer" && is_whole(std::from_chars(word.data(), end, value.integer))) {
    value.kind = JsonKind::kInteger;
    value.real = static_cast<double>(value.integer);
  }
  if (option.type == "number" && is_whole(std::from_chars(word.data(), end, value.real))) {
    value.kind = JsonKind::kReal;
  }
  return value;
}

}  // namespace

namespace {

std::string field_text(bool value) {
  return value ? "true" : "false";
}
std::string field_text(std::int64_t value) {
  return std::to_string(value);
}
std::string field_text(double value) {
  return exact_text(value);
}
template <class Choice>
std::string field_text(Choice value) {
  return std::string(name_of(value));
}

}  // namespace

std::vector<std::string> profile_field_names() {
  std::vector<std::string> names;
  for (const ProfileField& field : kProfileFields) { names.emplace_back(field.name); }
  return names;
}

std::string profile_field_text(const FrameworkProfile& profile, const std::string& name) {
  const ProfileField* field = find_field(name);
  return field == nullptr
             ? ""
             : std::visit([&](auto member) { return field_text(profile.*member); }, field->member);
}

std::string Library::key_of(const FrameworkProfile& profile) const {
  const std::string versioned = profile.name + "@" + profile.version;
  return known_framework(versioned) ? versioned : profile.name;
}

bool Library::known_framework(const std::string& name) const {
  return !is_path(name) && has("frameworks/" + name + ".json");
}

FrameworkProfile Library::framework(const std::string& name, const std::string& where) const {
  if (!known_framework(name)) {
    throw InputError((where.empty() ? "framework: " : where) + "found \"" +
                     shown(name, Encoding::kUnchecked) + "\", expected one of " +
                     joined(framework_names()) + suggestion(name, framework_names()));
  }
  return read_profile(parse("frameworks/" + name + ".json")).profile;
}

std::vector<ProfileOption> profile_options(const Library& library, const std::string& framework) {
  return read_profile(library.parse("frameworks/" + framework + ".json")).options;
}

void apply_options(FrameworkProfile& profile, const JsonValue& options, const std::string& file,
                   const Library& library) {
  ObjectReader reader(options, file);  // refuses what is not an object
  const std::vector<ProfileOption> known = profile_options(library, library.key_of(profile));
  for (const auto& [name, value] : options.members) {
    const std::string opening = place(file, value.line, value.pointer);
    const ProfileOption& option = find_option(known, name, opening, profile.name);
    if (!accepts(option, value)) {
      throw InputError(opening + "found " + describe(value) + ", expected " + expected_of(option));
    }
    set_field(profile, option, value);
  }
}

std::string option_text(const FrameworkProfile& profile, const std::string& name) {
  return std::visit([&](auto member) { return text_of_value(profile.*member); },
                    find_field(name)->member);
}

namespace {

void apply_known_option(FrameworkProfile& profile, const std::string& name, const std::string& word,
                        const std::vector<ProfileOption>& known) {
  const std::string opening = "option: ";
  const ProfileOption& option = find_option(known, name, opening, profile.name);
  const JsonValue value = value_of_word(option, word);
  if (!accepts(option, value)) {
    throw InputError("option " + name + ": found \"" + shown(word, Encoding::kUnchecked) +
                     "\", expected " + expected_of(option));
  }
  set_field(profile, option, value);
}

}  // namespace

void apply_option(FrameworkProfile& profile, const std::string& name, const std::string& word,
                  const Library& library) {
  apply_known_option(profile, name, word, profile_options(library, library.key_of(profile)));
}

std::string try_option(FrameworkProfile& profile, const std::string& name, const std::string& word,
                       const std::vector<ProfileOption>& options) {
  if (std::ranges::find(options, name, &ProfileOption::name) != options.end()) {
    apply_known_option(profile, name, word, options);
    return "";
  }
  const std::string fixed = profile_field_text(profile, name);
  return fixed == word ? ""
                       : "profile " + profile.name + " has " + name + " " + fixed + ", not " + word;
}

}  // namespace shardplan
