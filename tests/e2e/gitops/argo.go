package main

import (
	"context"
	"fmt"
	"time"

	"github.com/argoproj/gitops-engine/pkg/diff"
	"github.com/argoproj/gitops-engine/pkg/sync"
	"github.com/argoproj/gitops-engine/pkg/sync/common"
	"github.com/argoproj/gitops-engine/pkg/utils/kube"
	"github.com/argoproj/gitops-engine/pkg/utils/tracing"
	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/rest"
	"k8s.io/kubectl/pkg/util/openapi"
)

const (
	argoManager    = "argocd-controller"
	argoTrackingID = "argocd.argoproj.io/tracking-id"

	syncOnDrift = "drift"
	syncAlways  = "always"
)

type argoOptions struct {
	sync           string
	ignoredPaths   []string
	respectIgnored bool
}

// argo syncs one Application: it compares as the application controller does, and applies through Argo CD's engine.
type argo struct {
	options    argoOptions
	ignored    ignored
	serverSide bool
	config     *rest.Config
	kubectl    *kube.KubectlCmd
	schema     openapi.Resources
	types      *managedfields.GvkParser
	namespace  string
	name       string
}

func newArgo(given options, config *rest.Config) (*argo, error) {
	if given.argo.sync != syncOnDrift && given.argo.sync != syncAlways {
		return nil, fmt.Errorf("--sync %q is neither %s nor %s", given.argo.sync, syncOnDrift, syncAlways)
	}
	command := &kube.KubectlCmd{Log: logr.Discard(), Tracer: tracing.NopTracer{}}
	resources, types, err := command.LoadOpenAPISchema(config)
	if err != nil {
		return nil, err
	}
	ignored, err := newIgnored(given.argo.ignoredPaths)
	if err != nil {
		return nil, err
	}
	return &argo{
		options: given.argo, ignored: ignored, serverSide: given.as == asArgoServerSide, config: config, kubectl: command,
		schema: resources, types: types, namespace: given.namespace, name: given.name,
	}, nil
}

func (a *argo) apply(ctx context.Context, objects []*unstructured.Unstructured) ([]string, error) {
	live := map[kube.ResourceKey]*unstructured.Unstructured{}
	for _, target := range objects {
		a.track(target)
		found, err := a.kubectl.GetResource(ctx, a.config, target.GroupVersionKind(), target.GetName(), target.GetNamespace())
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		if err == nil {
			live[kube.GetResourceKey(target)] = found
		}
	}
	compared := sync.Reconcile(objects, live, a.namespace, namespaced{})
	differ, err := a.differ(compared)
	if err != nil {
		return nil, err
	}
	did := make([]string, len(objects))
	if !differ && a.options.sync == syncOnDrift {
		for i := range did {
			did[i] = "in sync"
		}
		return did, nil
	}
	if a.options.respectIgnored {
		for i, target := range compared.Target {
			if compared.Target[i], err = a.ignored.keepLive(target, compared.Live[i]); err != nil {
				return nil, err
			}
		}
	}
	results, err := a.sync(ctx, compared)
	if err != nil {
		return nil, err
	}
	for _, result := range results {
		for i, target := range objects {
			if result.ResourceKey == kube.GetResourceKey(target) {
				did[i] = fmt.Sprintf("%s: %s", result.Status, result.Message)
			}
		}
	}
	return did, nil
}

// track marks the object as part of the Application, by annotation: the default since Argo CD 3.0.
func (a *argo) track(target *unstructured.Unstructured) {
	kind := target.GroupVersionKind()
	annotations := target.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[argoTrackingID] = fmt.Sprintf("%s:%s/%s:%s/%s", a.name, kind.Group, kind.Kind, target.GetNamespace(), target.GetName())
	target.SetAnnotations(annotations)
}

// differ tells whether the Application is OutOfSync.
func (a *argo) differ(compared sync.ReconciliationResult) (bool, error) {
	targets, lives := make([]*unstructured.Unstructured, len(compared.Target)), make([]*unstructured.Unstructured, len(compared.Live))
	for i := range compared.Target {
		target, live, err := a.ignored.without(compared.Target[i], compared.Live[i])
		if err != nil {
			return false, err
		}
		targets[i], lives[i] = target, live
	}
	found, err := diff.DiffArray(targets, lives,
		diff.WithLogr(logr.Discard()),
		diff.WithManager(argoManager),
		diff.WithGVKParser(a.types),
		diff.WithStructuredMergeDiff(a.serverSide), // as Argo CD does for Applications with ServerSideApply=true
	)
	if err != nil {
		return false, err
	}
	return found.Modified, nil
}

func (a *argo) sync(ctx context.Context, compared sync.ReconciliationResult) ([]common.ResourceSyncResult, error) {
	operation, cleanup, err := sync.NewSyncContext("HEAD", compared, a.config, a.config, a.kubectl, a.namespace, a.schema,
		sync.WithLogr(logr.Discard()),
		sync.WithOperationSettings(false, false, false, false), // neither dry run nor prune, force, skip hooks
		sync.WithManifestValidation(true),
		sync.WithServerSideApply(a.serverSide),
		sync.WithServerSideApplyManager(argoManager),
		sync.WithClientSideApplyMigration(true, common.DefaultClientSideApplyMigrationManager),
	)
	if err != nil {
		return nil, err
	}
	defer cleanup()
	for {
		operation.Sync()
		phase, message, results := operation.GetState()
		switch {
		case phase.Failed(), phase == common.OperationError:
			return results, fmt.Errorf("sync failed: %s %v", message, results)
		case phase.Completed():
			return results, nil
		}
		select {
		case <-ctx.Done():
			operation.Terminate()
			return results, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// namespaced: every kind that the tests apply is.
type namespaced struct{}

func (namespaced) IsNamespaced(schema.GroupKind) (bool, error) { return true, nil }
