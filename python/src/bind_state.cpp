// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/autograd/python_variable.h>

#include "accelerate/error.h"
#include "accelerate/state/state_registry.h"
#include "core/base/mapped_file.h"
#include "core/base/str.h"
#include "core/checkpoint/checkpoint_folder.h"
#include "core/checkpoint/numbered.h"
#include "python/src/binders.h"
#include "python/src/state_values.h"
#include "training/run/model_context.h"
#include "training/state/sliced_state.h"

namespace accelerate::python {
namespace {

namespace py = pybind11;

/// A Python object in the state registry.
class PythonStateful final : public Stateful {
 public:
  StateDict state_dict() const override {
    const py::gil_scoped_acquire gil;
    return to_state_dict(method("state_dict")());
  }
  void check_state_dict(const StateDict& state) const override {
    const py::gil_scoped_acquire gil;
    const auto check = py::get_override(
        static_cast<const Stateful*>(this), "check_state_dict");
    if (check) {
      check(from_state_dict(state));
    }
  }
  void load_state_dict(const StateDict& state) override {
    const py::gil_scoped_acquire gil;
    method("load_state_dict")(from_state_dict(state));
  }

 private:
  py::function method(const char* name) const {
    auto found = py::get_override(static_cast<const Stateful*>(this), name);
    if (!found) {
      throw UsageError(
          std::string("[state] A Python object has no ") + name +
          ". Add state_dict() and load_state_dict() to its class");
    }
    return found;
  }
};

std::shared_ptr<Stateful> find_object(
    const StateRegistry& registry,
    const std::string& name) {
  for (auto& [known, object] : registry.objects()) {
    if (known == name) {
      return object;
    }
  }
  throw UsageError("[state] There is no object '" + name + "'");
}

} // namespace

py::dict from_state_dict(const StateDict& state) {
  py::dict values;
  for (const auto& [name, value] : state) {
    values[py::str(name)] =
        std::visit([](const auto& held) { return py::cast(held); }, value);
  }
  return values;
}

StateDict to_state_dict(const py::handle& values) {
  StateDict state;
  for (const auto& [key, value] : values.cast<py::dict>()) {
    const auto name = key.cast<std::string>();
    if (py::isinstance<py::bool_>(value)) {
      state.set(name, value.cast<bool>());
    } else if (py::isinstance<py::int_>(value)) {
      state.set(name, value.cast<int64_t>());
    } else if (py::isinstance<py::float_>(value)) {
      state.set(name, value.cast<double>());
    } else if (py::isinstance<py::str>(value)) {
      state.set(name, value.cast<std::string>());
    } else if (py::isinstance<TensorSlice>(value)) {
      state.set(name, value.cast<TensorSlice>());
    } else if (THPVariable_Check(value.ptr())) {
      state.set(name, value.cast<at::Tensor>());
    } else {
      throw UsageError(
          "[state] '" + name + "' is of type " +
          std::string(py::str(py::type::of(value).attr("__name__"))) +
          ", expected a bool, int, float, str, tensor or slice");
    }
  }
  return state;
}

void bind_state(py::module_& module) {
  module.def(
      "is_checkpoint",
      [](const std::string& folder) { return is_checkpoint(folder); },
      py::arg("folder"));
  module.def(
      "describe_missing_checkpoint",
      [](const std::string& folder, const py::function& is_one) {
        return describe_missing_checkpoint(
            folder, [&](const std::filesystem::path& path) {
              return is_one(path.string()).cast<bool>();
            });
      },
      py::arg("folder"),
      py::arg("is_one"));
  py::class_<CheckpointReader>(module, "CheckpointReader")
      .def(
          py::init([](const std::string& folder) {
            return std::make_unique<CheckpointReader>(folder);
          }),
          py::arg("folder"))
      .def_property_readonly(
          "job",
          [](const CheckpointReader& reader) { return reader.manifest().job; })
      .def_property_readonly(
          "moment",
          [](const CheckpointReader& reader) {
            return reader.manifest().moment;
          })
      .def(
          "texts_of",
          [](const CheckpointReader& reader, const std::string& object) {
            std::map<std::string, std::string> texts;
            const auto found = reader.manifest().state.find(object);
            if (found != reader.manifest().state.end()) {
              for (const auto& [name, value] : found->items()) {
                if (value.is_string()) {
                  texts[name] = value.get<std::string>();
                }
              }
            }
            return texts;
          },
          py::arg("object"))
      .def(
          "objects",
          [](const CheckpointReader& reader, int rank) {
            std::set<std::string> names;
            const auto add = [&](const Manifest& shard) {
              for (const auto& [name, values] : shard.state.items()) {
                names.insert(name);
              }
            };
            add(reader.manifest());
            if (const auto shard = reader.rank_shard(rank)) {
              add(*shard);
            }
            return names;
          },
          py::arg("rank"))
      .def(
          "verified",
          [](const CheckpointReader& reader, const std::string& file) {
            const auto found = reader.manifest().files.find(file);
            if (found == reader.manifest().files.end()) {
              throw DataError(str_cat(
                  "[load_state] The checkpoint '",
                  reader.folder().string(),
                  "' has no file '",
                  file,
                  "'. Load another checkpoint"));
            }
            const auto path = reader.find(file, found->second);
            reader.check(
                file,
                found->second,
                MappedFile(path, "load_state", "checkpoint").bytes());
            return path.string();
          },
          py::arg("file"));
  module.def(
      "next_checkpoint_number",
      [](const std::string& parent) { return next_checkpoint_number(parent); },
      py::arg("parent"));
  module.def(
      "numbered_checkpoint",
      [](const std::string& parent, std::int64_t number) {
        return numbered_checkpoint(parent, number).string();
      },
      py::arg("parent"),
      py::arg("number"));
  module.def(
      "checkpoint_number",
      [](const std::string& folder) { return checkpoint_number(folder); },
      py::arg("folder"));
  module.def(
      "numbered_checkpoints",
      [](const std::string& parent) {
        std::vector<std::string> folders;
        for (const auto& [number, folder] : numbered_checkpoints(parent)) {
          folders.push_back(folder.string());
        }
        return folders;
      },
      py::arg("parent"));
  module.def(
      "moments_of_job",
      [](const std::string& parent,
         const std::string& job,
         std::int64_t first) { return moments_of_job(parent, job, first); },
      py::arg("parent"),
      py::arg("job"),
      py::arg("first"));
  module.def(
      "is_original_checkpoint",
      [](const std::string& folder) { return is_original_checkpoint(folder); },
      py::arg("folder"));
  module.def(
      "rotate_checkpoints",
      [](const std::string& parent, std::int64_t limit) {
        rotate_checkpoints(parent, limit);
      },
      py::arg("parent"),
      py::arg("limit"));
  py::class_<TensorPiece>(module, "TensorPiece")
      .def(py::pickle(
          [](const TensorPiece& piece) {
            return py::make_tuple(
                piece.box.begin, piece.box.size, piece.begin, piece.count);
          },
          [](const py::tuple& state) {
            using Numbers = std::vector<int64_t>;
            return TensorPiece{
                {state[0].cast<Numbers>(), state[1].cast<Numbers>()},
                state[2].cast<int64_t>(),
                state[3].cast<int64_t>()};
          }));
  py::class_<TensorSlice>(module, "TensorSlice")
      .def_readonly("values", &TensorSlice::values)
      .def_readonly("whole", &TensorSlice::whole)
      .def_readonly("pieces", &TensorSlice::pieces);
  module.def("join_slices", &join_slices, py::arg("whole"), py::arg("slices"));
  py::class_<Stateful, PythonStateful, std::shared_ptr<Stateful>>(
      module, "Stateful")
      .def(py::init<>());
  py::class_<StateRegistry, std::shared_ptr<StateRegistry>>(
      module, "StateRegistry")
      .def(
          "add",
          [](StateRegistry& registry,
             const std::string& kind,
             const std::shared_ptr<Stateful>& object,
             bool per_rank) {
            return registry.add(
                kind,
                object,
                per_rank ? StateScope::kPerRank : StateScope::kCommon);
          },
          py::arg("kind"),
          py::arg("object"),
          py::arg("per_rank") = false)
      .def(
          "add_optional",
          &StateRegistry::add_optional,
          py::arg("kind"),
          py::arg("object"))
      .def(
          "names",
          [](const StateRegistry& registry) {
            std::vector<std::string> names;
            for (const auto& [name, object] : registry.objects()) {
              names.push_back(name);
            }
            return names;
          })
      .def(
          "name_of",
          [](const StateRegistry& registry, const ModelContext& model) {
            return registry.name_of(model);
          },
          py::arg("model"))
      .def(
          "state_of",
          [](const StateRegistry& registry, const std::string& name) {
            return from_state_dict(find_object(registry, name)->state_dict());
          },
          py::arg("name"))
      .def(
          "load_state_of",
          [](const StateRegistry& registry,
             const std::string& name,
             const py::dict& state) {
            find_object(registry, name)->load_state_dict(to_state_dict(state));
          },
          py::arg("name"),
          py::arg("state"))
      .def(
          "state_dict",
          [](const StateRegistry& registry) {
            return from_state_dict(registry.state_dict());
          })
      .def(
          "load_state_dict",
          [](StateRegistry& registry, const py::dict& state) {
            registry.load_state_dict(to_state_dict(state));
          },
          py::arg("state"));
}

} // namespace accelerate::python
