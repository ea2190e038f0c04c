package main

import (
	"context"

	"github.com/fluxcd/cli-utils/pkg/object"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	"github.com/fluxcd/pkg/ssa/normalize"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	fluxManager = "kustomize-controller"
	fluxGroup   = "kustomize.toolkit.fluxcd.io"
)

type fluxOptions struct {
	ignoredPaths []string
}

// flux applies one Kustomization with the library and the options of the kustomize-controller.
type flux struct {
	options   fluxOptions
	manager   *ssa.ResourceManager
	name      string
	namespace string
}

func newFlux(given options, cluster client.Client) flux {
	// Nothing waits for health here, so there is no poller.
	manager := ssa.NewResourceManager(cluster, nil, ssa.Owner{Field: fluxManager, Group: fluxGroup})
	return flux{options: given.flux, manager: manager, name: given.name, namespace: given.namespace}
}

func (f flux) apply(ctx context.Context, objects []*unstructured.Unstructured) ([]string, error) {
	f.manager.SetOwnerLabels(objects, f.name, f.namespace)
	if err := normalize.UnstructuredList(objects); err != nil {
		return nil, err
	}
	// ApplyAllStaged sorts what it is given.
	changes, err := f.manager.ApplyAllStaged(ctx, append([]*unstructured.Unstructured(nil), objects...), f.applyOptions())
	if err != nil {
		return nil, err
	}
	byObject := map[object.ObjMetadata]string{}
	for _, entry := range changes.Entries {
		byObject[entry.ObjMetadata] = entry.Action.String()
	}
	did := make([]string, len(objects))
	for i, applied := range objects {
		did[i] = byObject[object.UnstructuredToObjMetadata(applied)]
	}
	return did, nil
}

// applyOptions are those of the kustomize-controller 1.9 for a Kustomization with its default settings: these annotations are honoured,
// and what kubectl owned becomes Flux's. Conflicts are always forced, by the library.
func (f flux) applyOptions() ssa.ApplyOptions {
	apply, update := metav1.ManagedFieldsOperationApply, metav1.ManagedFieldsOperationUpdate
	chosen := ssa.DefaultApplyOptions()
	chosen.ExclusionSelector = map[string]string{fluxGroup + "/reconcile": "disabled", fluxGroup + "/ssa": "Ignore"}
	chosen.IfNotPresentSelector = map[string]string{fluxGroup + "/ssa": "IfNotPresent"}
	chosen.ForceSelector = map[string]string{fluxGroup + "/force": "enabled"}
	if len(f.options.ignoredPaths) > 0 {
		chosen.DriftIgnoreRules = []jsondiff.IgnoreRule{{Paths: f.options.ignoredPaths}}
	}
	chosen.Cleanup = ssa.ApplyCleanupOptions{
		Annotations: []string{corev1.LastAppliedConfigAnnotation},
		FieldManagers: []ssa.FieldManager{
			{Name: "kubectl", OperationType: apply},
			{Name: "kubectl", OperationType: update},
			{Name: "before-first-apply", OperationType: update},
			{Name: fluxManager, OperationType: update},
		},
		Exclusions: map[string]string{fluxGroup + "/ssa": "Merge"},
	}
	return chosen
}
