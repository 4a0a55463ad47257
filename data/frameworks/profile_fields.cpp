#include "data/frameworks/profile_fields.h"

#include <array>
#include <variant>

#include "data/read/json_message.h"

namespace shardplan {
namespace {

using Member = std::variant<
    bool FrameworkProfile::*, std::int64_t FrameworkProfile::*, double FrameworkProfile::*,
    SwigluKind FrameworkProfile::*, CrossEntropyKind FrameworkProfile::*,
    AllocatorKind FrameworkProfile::*, Schedule FrameworkProfile::*, CpMethod FrameworkProfile::*,
    DType FrameworkProfile::*, ReshardAfterForward FrameworkProfile::*,
    AttentionBackend FrameworkProfile::*, MoeDispatcher FrameworkProfile::*,
    TpOverlap FrameworkProfile::*, CpOverlap FrameworkProfile::*, CudaGraphs FrameworkProfile::*,
    Fp8Recipe FrameworkProfile::*, DefaultRecompute FrameworkProfile::*,
    OverlapComm FrameworkProfile::*, OverflowCheck FrameworkProfile::*,
    ExpertKernels FrameworkProfile::*, LigerKernel FrameworkProfile::*,
    FsdpUpcast FrameworkProfile::*, FsdpEnds FrameworkProfile::*, HeadLoss FrameworkProfile::*,
    FsdpPrefetch FrameworkProfile::*, TowerUse FrameworkProfile::*, TrainerLoop FrameworkProfile::*,
    ActivationOffload FrameworkProfile::*, FakeQuantization FrameworkProfile::*,
    Objective FrameworkProfile::*, ObjectiveTrainer FrameworkProfile::*,
    OptimizerSteps FrameworkProfile::*>;

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
    {"fp8_recipe", &FrameworkProfile::fp8_recipe},
    {"fp8_param_gather", &FrameworkProfile::fp8_param_gather},
    {"eager_communicators", &FrameworkProfile::eager_communicators},
    {"deterministic_attention", &FrameworkProfile::deterministic_attention},
    {"attention_backend", &FrameworkProfile::attention_backend},
    {"masked_softmax_fusion", &FrameworkProfile::masked_softmax_fusion},
    {"attention_softmax_in_fp32", &FrameworkProfile::attention_softmax_in_fp32},
    {"attention_mask", &FrameworkProfile::attention_mask},
    {"moe_dispatcher", &FrameworkProfile::moe_dispatcher},
    {"moe_router_dtype", &FrameworkProfile::moe_router_dtype},
    {"moe_router_force_load_balancing", &FrameworkProfile::moe_router_force_load_balancing},
    {"moe_grouped_gemm", &FrameworkProfile::moe_grouped_gemm},
    {"moe_permute_fusion", &FrameworkProfile::moe_permute_fusion},
    {"moe_permute_scans_experts", &FrameworkProfile::moe_permute_scans_experts},
    {"moe_router_casts", &FrameworkProfile::moe_router_casts},
    {"moe_router_fusion", &FrameworkProfile::moe_router_fusion},
    {"moe_shared_expert_overlap", &FrameworkProfile::moe_shared_expert_overlap},
    {"rope_fusion", &FrameworkProfile::rope_fusion},
    {"cuda_graphs", &FrameworkProfile::cuda_graphs},
    {"launch_blocking", &FrameworkProfile::launch_blocking},
    {"torch_workspace_bytes", &FrameworkProfile::torch_workspace_bytes},
    {"init_model_with_meta_device", &FrameworkProfile::init_model_with_meta_device},
    {"fsdp_whole_moments", &FrameworkProfile::fsdp_whole_moments},
    {"fsdp_double_buffer", &FrameworkProfile::fsdp_double_buffer},
    {"log_params_norm", &FrameworkProfile::log_params_norm},
    {"decoupled_in_proj", &FrameworkProfile::decoupled_in_proj},
    {"nccl_ub", &FrameworkProfile::nccl_ub},
    {"deallocate_pipeline_outputs", &FrameworkProfile::deallocate_pipeline_outputs},
    {"fused_optimizer", &FrameworkProfile::fused_optimizer},
    {"muon_nesterov", &FrameworkProfile::muon_nesterov},
    {"compile", &FrameworkProfile::compile},
    {"compile_layers", &FrameworkProfile::compile_layers},
    {"compile_loss", &FrameworkProfile::compile_loss},
    {"root_holds_ends", &FrameworkProfile::root_holds_ends},
    {"reshard_after_forward", &FrameworkProfile::reshard_after_forward},
    {"account_for_embedding_in_split", &FrameworkProfile::account_for_embedding_in_split},
    {"account_for_loss_in_split", &FrameworkProfile::account_for_loss_in_split},
    {"cross_entropy_chunks", &FrameworkProfile::cross_entropy_chunks},
    {"tensor_parallel_chunk_tokens", &FrameworkProfile::tensor_parallel_chunk_tokens},
    {"deferred_embedding_wgrads", &FrameworkProfile::deferred_embedding_wgrads},
    {"microbatch_group_size", &FrameworkProfile::microbatch_group_size},
    {"suggested_communication_unit_size", &FrameworkProfile::suggested_communication_unit_size},
    {"weights_dtype", &FrameworkProfile::weights_dtype},
    {"tf32", &FrameworkProfile::tf32},
    {"autocast", &FrameworkProfile::autocast},
    {"reentrant_checkpoint", &FrameworkProfile::reentrant_checkpoint},
    {"checkpoints_layer_parts", &FrameworkProfile::checkpoints_layer_parts},
    {"loads_whole", &FrameworkProfile::loads_whole},
    {"loop", &FrameworkProfile::loop},
    {"fsdp_version", &FrameworkProfile::fsdp_version},
    {"fsdp_upcast", &FrameworkProfile::fsdp_upcast},
    {"fsdp_ends", &FrameworkProfile::fsdp_ends},
    {"fsdp_reduce_dtype", &FrameworkProfile::fsdp_reduce_dtype},
    {"fsdp_adapters_alone", &FrameworkProfile::fsdp_adapters_alone},
    {"gradient_as_bucket_view", &FrameworkProfile::gradient_as_bucket_view},
    {"head_loss", &FrameworkProfile::head_loss},
    {"loss_chunk_tokens", &FrameworkProfile::loss_chunk_tokens},
    {"objective", &FrameworkProfile::objective},
    {"objective_trainer", &FrameworkProfile::objective_trainer},
    {"precomputes_reference", &FrameworkProfile::precomputes_reference},
    {"num_labels", &FrameworkProfile::num_labels},
    {"foreach_optimizer", &FrameworkProfile::foreach_optimizer},
    {"projection_rank", &FrameworkProfile::projection_rank},
    {"optimizer_steps", &FrameworkProfile::optimizer_steps},
    {"packed_sequences", &FrameworkProfile::packed_sequences},
    {"wide_ends", &FrameworkProfile::wide_ends},
    {"fsdp_prefetch", &FrameworkProfile::fsdp_prefetch},
    {"eager_experts", &FrameworkProfile::eager_experts},
    {"linear_experts", &FrameworkProfile::linear_experts},
    {"expert_kernels", &FrameworkProfile::expert_kernels},
    {"mixer_kernels", &FrameworkProfile::mixer_kernels},
    {"convolution_kernels", &FrameworkProfile::convolution_kernels},
    {"float_quant_storage", &FrameworkProfile::float_quant_storage},
    {"checkpoints_frozen", &FrameworkProfile::checkpoints_frozen},
    {"narrow_frozen", &FrameworkProfile::narrow_frozen},
    {"vision_tower", &FrameworkProfile::vision_tower},
    {"fsdp_wraps_tower", &FrameworkProfile::fsdp_wraps_tower},
    {"finds_unused", &FrameworkProfile::finds_unused},
    {"quantizes_experts", &FrameworkProfile::quantizes_experts},
    {"quant_compute_dtype", &FrameworkProfile::quant_compute_dtype},
    {"fused_norm_rotary", &FrameworkProfile::fused_norm_rotary},
    {"adapter_kernels", &FrameworkProfile::adapter_kernels},
    {"tensor_parallel_dtensors", &FrameworkProfile::tensor_parallel_dtensors},
    {"activation_offload", &FrameworkProfile::activation_offload},
    {"offload_spares_weights", &FrameworkProfile::offload_spares_weights},
    {"ffn_tiles", &FrameworkProfile::ffn_tiles},
    {"fake_quantization", &FrameworkProfile::fake_quantization},
    {"fake_quantization_group", &FrameworkProfile::fake_quantization_group},
    {"recompute_allgather", &FrameworkProfile::recompute_allgather},
    {"keeps_gather_buffers", &FrameworkProfile::keeps_gather_buffers},
    {"interleaved_rotary", &FrameworkProfile::interleaved_rotary},
    {"ends_on_last_stage", &FrameworkProfile::ends_on_last_stage},
    {"overlap_comm", &FrameworkProfile::overlap_comm},
    {"reduce_bucket_elements", &FrameworkProfile::reduce_bucket_elements},
    {"prefetch_bucket_elements", &FrameworkProfile::prefetch_bucket_elements},
    {"max_live_parameters", &FrameworkProfile::max_live_parameters},
    {"liger_kernel", &FrameworkProfile::liger_kernel},
    {"offload_pin_memory", &FrameworkProfile::offload_pin_memory},
    {"host_threads", &FrameworkProfile::host_threads},
    {"overflow_check", &FrameworkProfile::overflow_check},
    {"divides_logits_gradient", &FrameworkProfile::divides_logits_gradient},
    {"makes_buckets_first", &FrameworkProfile::makes_buckets_first},
    {"flattens_on_gpu", &FrameworkProfile::flattens_on_gpu},
    {"casts_divided_parameters", &FrameworkProfile::casts_divided_parameters},
    {"persistent_elements", &FrameworkProfile::persistent_elements},
    {"moe_imbalance_factor", &FrameworkProfile::moe_imbalance_factor},
    {"moe_load_spread", &FrameworkProfile::moe_load_spread},
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
    {"default_recompute", &FrameworkProfile::default_recompute},
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
    {"all_reduced_zero", &FrameworkProfile::all_reduced_zero},
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
// name, version, memory_model and host have keys of their own in the file, and layout and choices
// are the framework's.
static_assert(num_fields<FrameworkProfile>() == kProfileFields.size() + 6,
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

}  // namespace

std::vector<std::string> profile_field_names() {
  std::vector<std::string> names;
  names.reserve(kProfileFields.size());
  for (const ProfileField& field : kProfileFields) { names.emplace_back(field.name); }
  return names;
}

std::string profile_field_type(std::string_view name) {
  const ProfileField* field = find_field(name);
  return field == nullptr ? "" : type_of(field->member);
}

bool profile_field_knows(std::string_view name, const std::string& word) {
  return std::visit([&]<class Field>(Field FrameworkProfile::*) { return knows(Field{}, word); },
                    find_field(name)->member);
}

std::string profile_field_text(const FrameworkProfile& profile, std::string_view name) {
  const ProfileField* field = find_field(name);
  return field == nullptr ? ""
                          : std::visit([&](auto member) { return text_of_value(profile.*member); },
                                       field->member);
}

void set_profile_field(FrameworkProfile& profile, std::string_view name, const JsonValue& value) {
  std::visit([&](auto member) { assign(profile.*member, value); }, find_field(name)->member);
}

}  // namespace shardplan
