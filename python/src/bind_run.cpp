// SPDX-License-Identifier: Apache-2.0
#include "accelerate/distributed/local_sgd.h"
#include "accelerate/error.h"
#include "core/base/exit_codes.h"
#include "core/config/run_settings.h"
#include "python/src/binders.h"
#include "python/src/python_optimizer.h"
#include "python/src/state_values.h"
#include "training/run/training_run.h"

namespace accelerate::python {
namespace {

namespace py = pybind11;

void bind_options(py::module_& module) {
  py::class_<PowerSgdOptions>(module, "PowerSgdOptions")
      .def(py::init<>())
      .def_readwrite(
          "matrix_approximation_rank",
          &PowerSgdOptions::matrix_approximation_rank)
      .def_readwrite(
          "start_powerSGD_iter", &PowerSgdOptions::start_powerSGD_iter)
      .def_readwrite(
          "min_compression_rate", &PowerSgdOptions::min_compression_rate)
      .def_readwrite("use_error_feedback", &PowerSgdOptions::use_error_feedback)
      .def_readwrite("warm_start", &PowerSgdOptions::warm_start)
      .def_readwrite(
          "orthogonalization_epsilon",
          &PowerSgdOptions::orthogonalization_epsilon)
      .def_readwrite("random_seed", &PowerSgdOptions::random_seed);
  py::enum_<Compression>(module, "Compression")
      .value("none", Compression::kNone)
      .value("fp16", Compression::kFp16)
      .value("bf16", Compression::kBf16)
      .value("power_sgd", Compression::kPowerSgd);
  py::class_<DdpOptions>(module, "DdpOptions")
      .def(py::init<>())
      .def_readwrite("broadcast_buffers", &DdpOptions::broadcast_buffers)
      .def_readwrite("bucket_cap_mb", &DdpOptions::bucket_cap_mb)
      .def_readwrite(
          "find_unused_parameters", &DdpOptions::find_unused_parameters)
      .def_readwrite(
          "gradient_as_bucket_view", &DdpOptions::gradient_as_bucket_view)
      .def_readwrite("static_graph", &DdpOptions::static_graph)
      .def_readwrite("compression", &DdpOptions::compression)
      .def_readwrite("power_sgd", &DdpOptions::power_sgd);
  py::class_<ShardingOptions>(module, "ShardingOptions")
      .def(py::init<>())
      .def_property(
          "stage",
          [](const ShardingOptions& options) {
            return static_cast<int>(options.stage);
          },
          [](ShardingOptions& options, int stage) {
            options.stage = static_cast<ShardStage>(stage);
          })
      .def_readwrite("min_unit_numbers", &ShardingOptions::min_unit_numbers)
      .def_readwrite("prefetch", &ShardingOptions::prefetch)
      .def_property(
          "reduce_dtype",
          [](const ShardingOptions& options) {
            return find_precision(options.reduce_dtype).name;
          },
          [](ShardingOptions& options, const std::string& name) {
            options.reduce_dtype = parse_precision(name);
          })
      .def_readwrite("ignored", &ShardingOptions::ignored)
      .def_readwrite("cpu_offload", &ShardingOptions::cpu_offload);
  py::class_<MeshSizes>(module, "MeshSizes")
      .def(
          py::init([](int replicate,
                      int shard,
                      int context,
                      int sequence,
                      int tensor) {
            return MeshSizes{
                .replicate = replicate,
                .shard = shard,
                .context = context,
                .sequence = sequence,
                .tensor = tensor};
          }),
          py::arg("replicate") = MeshSizes().replicate,
          py::arg("shard") = MeshSizes().shard,
          py::arg("context") = MeshSizes().context,
          py::arg("sequence") = MeshSizes().sequence,
          py::arg("tensor") = MeshSizes().tensor);
  // Extension modules that have their own engine create these objects.
  py::class_<OwnEngine>(module, "OwnEngine");
  py::class_<GradScalerOptions>(module, "GradScalerOptions")
      .def(py::init<>())
      .def_readwrite("init_scale", &GradScalerOptions::init_scale)
      .def_readwrite("growth_factor", &GradScalerOptions::growth_factor)
      .def_readwrite("backoff_factor", &GradScalerOptions::backoff_factor)
      .def_readwrite("growth_interval", &GradScalerOptions::growth_interval);
  py::class_<AccumulationOptions>(module, "AccumulationOptions")
      .def(py::init<>())
      .def_readwrite("num_steps", &AccumulationOptions::num_steps)
      .def_readwrite(
          "sync_with_dataloader", &AccumulationOptions::sync_with_dataloader)
      .def_readwrite("sync_each_batch", &AccumulationOptions::sync_each_batch);
  py::class_<AcceleratorOptions>(module, "AcceleratorOptions")
      .def(py::init<>())
      .def_readwrite("cpu", &AcceleratorOptions::cpu)
      .def_readwrite("debug", &AcceleratorOptions::debug)
      .def_readwrite("master_weights", &AcceleratorOptions::master_weights)
      .def_readwrite("accumulation", &AcceleratorOptions::accumulation)
      .def_readwrite("ddp", &AcceleratorOptions::ddp)
      .def_readwrite("shard", &AcceleratorOptions::shard)
      .def_readwrite("parallelism", &AcceleratorOptions::parallelism)
      .def_readwrite("engine", &AcceleratorOptions::engine)
      .def_readwrite("scaler", &AcceleratorOptions::scaler)
      .def_readwrite("environment", &AcceleratorOptions::environment)
      .def_readwrite("process_group", &AcceleratorOptions::process_group)
      .def(
          "save_on_each_node",
          [](AcceleratorOptions& options, bool on_each_node) {
            options.checkpoints.save_on_each_node = on_each_node;
          },
          py::arg("on_each_node"))
      .def(
          "set_mixed_precision",
          [](AcceleratorOptions& options, const std::string& name) {
            options.mixed_precision = parse_precision(name);
          },
          py::arg("name"));
}

/// Entered and left by Python's `with accelerator.accumulate(model)`.
class MicroBatch {
 public:
  MicroBatch(
      TrainingRun& run,
      std::vector<std::shared_ptr<ModelContext>> models)
      : run_(run), models_(std::move(models)) {}
  void enter() {
    guard_ = std::make_unique<AccumulateGuard>(run_.begin_micro_batch(models_));
  }
  void exit() { guard_.reset(); }

 private:
  TrainingRun& run_;
  std::vector<std::shared_ptr<ModelContext>> models_;
  std::unique_ptr<AccumulateGuard> guard_;
};

/// Entered and left by Python's `with accelerator.join_uneven_inputs(...)`.
class Join {
 public:
  Join(
      const TrainingRun& run,
      std::vector<std::shared_ptr<ModelContext>> models,
      bool even)
      : run_(run), models_(std::move(models)), even_(even) {}
  void enter() {
    std::vector<ParallelEngine*> engines;
    for (const auto& model : models_) {
      engines.push_back(model->engine.get());
    }
    guard_.reset(new JoinGuard(run_.begin_join(std::move(engines), {}, even_)));
  }
  // The guard's destructor may throw, but a smart pointer's must not.
  void exit() { delete guard_.release(); }
  void abandon() {
    guard_->abandon();
    exit();
  }

 private:
  const TrainingRun& run_;
  std::vector<std::shared_ptr<ModelContext>> models_;
  bool even_;
  std::unique_ptr<JoinGuard> guard_;
};

/// Entered and left by Python's `with LocalSGD(...)`.
class LocalSteps {
 public:
  LocalSteps(
      const TrainingRun& run,
      std::shared_ptr<ModelContext> model,
      int64_t num_steps)
      : run_(run), model_(std::move(model)), num_steps_(num_steps) {}
  void enter() {
    guard_ = std::make_unique<LocalSGD>(
        run_.group(), *model_->engine, model_->model.parameters, num_steps_);
  }
  void step() { guard_->step(); }
  // The guard's destructor may throw, but a smart pointer's must not.
  void exit() { delete guard_.release(); }
  void abandon() {
    guard_->abandon();
    exit();
  }

 private:
  const TrainingRun& run_;
  std::shared_ptr<ModelContext> model_;
  int64_t num_steps_;
  std::unique_ptr<LocalSGD> guard_;
};

} // namespace

void bind_run(py::module_& module) {
  bind_options(module);
  const auto release = py::call_guard<py::gil_scoped_release>();
  module.def(
      "requested_precision",
      [](const std::optional<std::string>& name) {
        std::optional<Precision> given;
        if (name) {
          given = parse_precision(*name);
        }
        return find_precision(RunSettings(system_env).mixed_precision(given))
            .name;
      },
      py::arg("name"));
  py::class_<MicroBatch>(module, "MicroBatch")
      .def("enter", &MicroBatch::enter)
      .def("exit", &MicroBatch::exit);
  py::class_<Join>(module, "Join")
      .def("enter", &Join::enter)
      .def("exit", &Join::exit, release)
      .def("abandon", &Join::abandon, release);
  py::class_<LocalSteps>(module, "LocalSteps")
      .def("enter", &LocalSteps::enter)
      .def("step", &LocalSteps::step, release)
      .def("exit", &LocalSteps::exit, release)
      .def("abandon", &LocalSteps::abandon, release);
  // The methods have torch's names.
  py::class_<GradScaler, std::shared_ptr<GradScaler>>(module, "GradScaler")
      .def("is_enabled", [](const GradScaler&) { return true; })
      .def("scale", &GradScaler::scale, py::arg("loss"))
      .def("get_scale", &GradScaler::current_scale, release)
      .def(
          "state_dict",
          [](const GradScaler& scaler) {
            return from_state_dict(scaler.state_dict());
          })
      .def(
          "load_state_dict",
          [](GradScaler& scaler, const py::dict& state) {
            scaler.load_state_dict(to_state_dict(state));
          },
          py::arg("state_dict"));
  module.attr("EXIT_PREEMPTED") = kExitPreempted;
  py::class_<TrainingRun>(module, "TrainingRun")
      .def(
          py::init([](AcceleratorOptions options,
                      std::shared_ptr<StepState> step_state,
                      py::function complain) {
            std::unique_ptr<TrainingRun> run;
            {
              // Ranks communicate here, partly through their store.
              const py::gil_scoped_release no_gil;
              run = std::make_unique<TrainingRun>(
                  std::move(options), system_env, std::move(step_state));
            }
            run->on_raw_loss(
                [complain = std::move(complain)](const std::string& what) {
                  const py::gil_scoped_acquire gil;
                  complain(what);
                });
            return run;
          }),
          py::arg("options"),
          py::arg("step_state"),
          py::arg("complain"))
      .def_property_readonly("device", &TrainingRun::device)
      .def_property_readonly(
          "mixed_precision",
          [](const TrainingRun& run) {
            return find_precision(run.precision()).name;
          })
      .def_property_readonly("debug", &TrainingRun::debug)
      .def_property_readonly(
          "data_rank",
          [](const TrainingRun& run) {
            return run.mesh().coordinate(MeshDimension::kData);
          })
      .def_property_readonly(
          "num_data_ranks",
          [](const TrainingRun& run) {
            return run.mesh().size(MeshDimension::kData);
          })
      .def_property_readonly(
          "checkpoints",
          py::overload_cast<>(&TrainingRun::checkpoints),
          py::return_value_policy::reference_internal)
      .def_property_readonly(
          "report",
          py::overload_cast<>(&TrainingRun::report),
          py::return_value_policy::reference_internal)
      .def_property_readonly(
          "batch_rows",
          &TrainingRun::batch_rows,
          py::return_value_policy::reference_internal)
      .def("should_stop", &TrainingRun::should_stop, release)
      .def_property(
          "num_accumulation_steps",
          &TrainingRun::num_accumulation_steps,
          &TrainingRun::set_num_accumulation_steps)
      .def(
          "prepare_model",
          &TrainingRun::prepare_model,
          py::arg("model"),
          py::arg("type"),
          py::arg("evaluation_mode"),
          release)
      .def_property_readonly(
          "shards_parameters", &TrainingRun::shards_parameters)
      .def(
          "train_evaluated",
          &TrainingRun::train_evaluated,
          py::arg("model"),
          release)
      .def(
          "prepare_optimizer",
          [](TrainingRun& run, py::object adapter) {
            return run.prepare_optimizer(
                std::make_unique<PythonOptimizer>(std::move(adapter)));
          },
          py::arg("adapter"))
      .def("wire", &TrainingRun::wire)
      .def_property_readonly("scaler", &TrainingRun::scaler)
      .def(
          "join",
          [](const TrainingRun& run,
             std::vector<std::shared_ptr<ModelContext>> models,
             bool even) {
            return std::make_unique<Join>(run, std::move(models), even);
          },
          py::arg("models"),
          py::arg("even"),
          py::keep_alive<0, 1>())
      .def(
          "local_steps",
          [](const TrainingRun& run,
             std::shared_ptr<ModelContext> model,
             int64_t num_steps) {
            return std::make_unique<LocalSteps>(
                run, std::move(model), num_steps);
          },
          py::arg("model"),
          py::arg("num_steps"),
          py::keep_alive<0, 1>())
      .def_property_readonly("state", &TrainingRun::state)
      .def(
          "backward",
          [](TrainingRun& run,
             const at::Tensor& loss,
             const std::optional<std::variant<double, at::Tensor>>& weight,
             bool retain_graph,
             const py::function& f) {
            // Hosts may wait for each other's weights here.
            const py::gil_scoped_release no_gil;
            BackwardOptions options{.retain_graph = retain_graph};
            if (weight) {
              std::visit(
                  [&](const auto& w) { options.weight.emplace(w); }, *weight);
            }
            run.backward(loss, options, [&](const at::Tensor& weighted) {
              const py::gil_scoped_acquire gil;
              f(weighted);
            });
          },
          py::arg("loss"),
          py::arg("weight"),
          py::arg("retain_graph"),
          py::arg("run"))
      .def(
          "micro_batch",
          [](TrainingRun& run,
             std::vector<std::shared_ptr<ModelContext>> models) {
            return std::make_unique<MicroBatch>(run, std::move(models));
          },
          py::arg("models"),
          py::keep_alive<0, 1>())
      .def("unscale_gradients", &TrainingRun::unscale_gradients, release)
      .def(
          "clip_grad_norm",
          &TrainingRun::clip_grad_norm,
          py::arg("parameters"),
          py::arg("max_norm"),
          py::arg("norm_type"),
          release)
      .def(
          "clip_grad_value",
          &TrainingRun::clip_grad_value,
          py::arg("parameters"),
          py::arg("limit"),
          release)
      .def_property_readonly(
          "optimizer_step_was_skipped",
          py::cpp_function(&TrainingRun::optimizer_step_was_skipped, release))
      .def(
          "scheduler_moves",
          [](const TrainingRun& run,
             std::vector<std::shared_ptr<OptimizerStep>> optimizers,
             bool step_with_optimizer,
             bool split_batches,
             bool adjust_scheduler,
             int64_t num_counted,
             std::optional<int64_t> end) {
            const SchedulerMoves moves = scheduler_moves(
                {.follows_optimizers = step_with_optimizer,
                 .optimizers = std::move(optimizers),
                 .is_original_rule = true,
                 .sync_gradients = run.step_state()->sync_gradients(),
                 .counts_accumulated = adjust_scheduler,
                 .stepping = split_batches
                                 ? SchedulerStepping::kPerOptimizerStep
                                 : SchedulerStepping::kPerProcess,
                 .num_processes = run.num_scheduled_processes(),
                 .num_counted = num_counted,
                 .end = end});
            return std::make_pair(moves.num_moves, moves.num_counted);
          },
          py::arg("optimizers"),
          py::arg("step_with_optimizer"),
          py::arg("split_batches"),
          py::arg("adjust_scheduler"),
          py::arg("num_counted"),
          py::arg("end"))
      .def("set_trigger", &TrainingRun::set_trigger)
      .def("check_trigger", &TrainingRun::check_trigger, release);
}

} // namespace accelerate::python
