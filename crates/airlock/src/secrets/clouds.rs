//! What the clients of Google and Azure read: files and variables that hold placeholders. They trade what is in them for access
//! tokens themselves; the keeper answers them, so a secret for them is one with `oauth`. Pure.

use super::{Kind, wanted::Wanted};
use crate::failure::Failure;
use airlock_protocol::secret::{Grant, Use};
use serde_json::json;

/// Where every client of Google looks for the credentials of whoever works here.
pub(super) const GOOGLE: &str = ".config/gcloud/application_default_credentials.json";
/// Who has logged in, for `az`, and what it logs in with.
pub(super) const AZURE: [&str; 2] = [".azure/azureProfile.json", ".azure/service_principal_entries.json"];

/// Where clients of Azure log in, unless they are told of another place.
const AZURE_LOGIN: &str = "login.microsoftonline.com";

/// How tokens are fetched with a secret.
struct Tokens<'w> {
    url: &'w str,
    client: &'w str,
    client_secret: Option<&'w str>,
    grant: Grant,
}

impl<'w> Tokens<'w> {
    fn of(wanted: &'w Wanted) -> Option<Tokens<'w>> {
        match &wanted.secret.use_as {
            Use::OAuth { token_url, client_id, client_secret, grant, .. } => Some(Tokens {
                url: token_url,
                client: client_id,
                client_secret: client_secret.as_deref(),
                grant: *grant,
            }),
            Use::Plain | Use::AwsKey { .. } => None,
        }
    }

    /// Host and tenant of `https://HOST/TENANT/oauth2/v2.0/token`.
    fn tenant(&self) -> Option<(&'w str, &'w str)> {
        let (host, path) = self.url.strip_prefix("https://")?.split_once('/')?;
        let tenant = path.strip_suffix("/oauth2/v2.0/token")?;
        (!tenant.is_empty() && !tenant.contains('/')).then_some((host, tenant))
    }
}

/// Refuses a file for a client that could do nothing with it.
pub(super) fn check(wanted: &Wanted) -> Result<(), Failure> {
    let tokens = Tokens::of(wanted);
    let refused = |kind: &str, fix: &str| {
        let name = &wanted.secret.name;
        Err(Failure::new(format!("the secret {name} cannot be shown to the clients of {kind}"))
            .code(2)
            .why("they trade what they are given for tokens, which only the keeper may have")
            .fix(format!("oauth = {{ {fix} }} under [secrets.{name}]")))
    };
    if wanted.files.contains(&Kind::Google)
        && !tokens.as_ref().is_some_and(|tokens| tokens.grant.is_refresh())
    {
        return refused("Google", "token_url = \"https://oauth2.googleapis.com/token\", client_id = \"…\"");
    }
    if wanted.files.contains(&Kind::Azure) && azure_of(wanted).is_none() {
        let url = format!("token_url = \"https://{AZURE_LOGIN}/TENANT/oauth2/v2.0/token\"");
        return refused("Azure", &format!("{url}, client_id = \"…\", grant = \"client_credentials\""));
    }
    Ok(())
}

/// The credentials of somebody who has logged in (`authorized_user`).
pub(super) fn google(wanted: &Wanted, all: &[Wanted]) -> String {
    let Some(tokens) = Tokens::of(wanted) else { return String::new() };
    let named = all.iter().find(|other| Some(other.secret.name.as_str()) == tokens.client_secret);
    // Some clients want one to be there; the keeper asks nobody for it.
    let client_secret = named.map_or("unused", |other| &other.secret.placeholder);
    let mut text = json!({
        "type": "authorized_user", "client_id": tokens.client, "client_secret": client_secret,
        "refresh_token": wanted.secret.placeholder, "token_uri": tokens.url,
    });
    if let (Some(project), Some(text)) = (&wanted.user, text.as_object_mut()) {
        text.insert("quota_project_id".to_owned(), json!(project));
    }
    format!("{text}\n")
}

/// The two files of `az`, for a service principal.
pub(super) fn azure(wanted: &Wanted) -> Option<[String; 2]> {
    let (tokens, _, tenant) = azure_of(wanted)?;
    // As `az login --allow-no-subscriptions` writes it, where no subscription is named.
    let subscription = wanted.user.as_deref().unwrap_or(tenant);
    let profile = json!({ "subscriptions": [{
        "id": subscription, "name": subscription, "state": "Enabled", "isDefault": true, "tenantId": tenant,
        "environmentName": "AzureCloud", "user": { "name": tokens.client, "type": "servicePrincipal" },
    }] });
    let entries =
        json!([{ "client_id": tokens.client, "tenant": tenant, "client_secret": wanted.secret.placeholder }]);
    Some([format!("{profile}\n"), format!("{entries}\n")])
}

/// Variables that the same clients read.
pub(super) fn variables(wanted: &Wanted) -> Vec<(&'static str, String)> {
    let placeholder = || wanted.secret.placeholder.clone();
    let mut found = Vec::new();
    if wanted.files.contains(&Kind::Google) {
        found.push(("CLOUDSDK_AUTH_ACCESS_TOKEN", placeholder()));
        found.extend(wanted.user.iter().map(|project| ("GOOGLE_CLOUD_PROJECT", project.clone())));
    }
    if let Some((tokens, host, tenant)) = azure_of(wanted).filter(|_| wanted.files.contains(&Kind::Azure)) {
        found.push(("AZURE_TENANT_ID", tenant.to_owned()));
        found.push(("AZURE_CLIENT_ID", tokens.client.to_owned()));
        found.push(("AZURE_CLIENT_SECRET", placeholder()));
        found.extend(wanted.user.iter().map(|own| ("AZURE_SUBSCRIPTION_ID", own.clone())));
        found.extend((host != AZURE_LOGIN).then(|| ("AZURE_AUTHORITY_HOST", format!("https://{host}"))));
    }
    found
}

/// What a client of Azure asks for before it logs in: who is in charge of a tenant, and where.
pub(super) fn asked_before(wanted: &Wanted) -> Vec<String> {
    let Some((_, _, tenant)) = azure_of(wanted).filter(|_| wanted.files.contains(&Kind::Azure)) else {
        return Vec::new();
    };
    vec!["/common/discovery/instance".to_owned(), format!("/{tenant}/v2.0/.well-known/openid-configuration")]
}

fn azure_of(wanted: &Wanted) -> Option<(Tokens<'_>, &str, &str)> {
    let tokens = Tokens::of(wanted).filter(|tokens| tokens.grant == Grant::ClientCredentials)?;
    let (host, tenant) = tokens.tenant()?;
    Some((tokens, host, tenant))
}

#[cfg(test)]
mod tests {
    use super::*;
    use airlock_protocol::secret::{From, Place, Secret};

    fn wanted(kind: Kind, url: &str, grant: Grant) -> Wanted {
        let secret = Secret {
            name: "T".into(),
            from: From::Env("T".into()),
            placeholder: "PLACEHOLDER".into(),
            hosts: vec!["api.example.com".into()],
            methods: vec![],
            paths: vec![],
            places: vec![Place::Header],
            use_as: Use::OAuth {
                token_url: url.into(),
                client_id: "me".into(),
                client_secret: None,
                grant,
                scope: None,
            },
        };
        Wanted { secret, also: vec![], files: vec![kind], user: None, opens: true }
    }

    #[test]
    fn googles_clients_find_somebody_who_has_logged_in() {
        let mut own = wanted(Kind::Google, "https://oauth2.googleapis.com/token", Grant::RefreshToken);
        assert_eq!(
            google(&own, &[]),
            "{\"client_id\":\"me\",\"client_secret\":\"unused\",\"refresh_token\":\"PLACEHOLDER\",\
             \"token_uri\":\"https://oauth2.googleapis.com/token\",\"type\":\"authorized_user\"}\n"
        );
        own.user = Some("acme".into());
        assert!(google(&own, &[]).contains("\"quota_project_id\":\"acme\""));
        let variables = variables(&own);
        assert_eq!(
            variables,
            [("CLOUDSDK_AUTH_ACCESS_TOKEN", "PLACEHOLDER".into()), ("GOOGLE_CLOUD_PROJECT", "acme".into())]
        );
        assert!(check(&own).is_ok());
    }

    #[test]
    fn azures_clients_find_a_service_principal() {
        let url = "https://login.microsoftonline.com/tenant-1/oauth2/v2.0/token";
        let own = wanted(Kind::Azure, url, Grant::ClientCredentials);
        let [profile, entries] = azure(&own).unwrap();
        assert!(profile.contains("\"id\":\"tenant-1\"") && !profile.contains("PLACEHOLDER"), "{profile}");
        assert_eq!(
            entries,
            "[{\"client_id\":\"me\",\"client_secret\":\"PLACEHOLDER\",\"tenant\":\"tenant-1\"}]\n"
        );
        let names: Vec<&str> = variables(&own).iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"]);
        let elsewhere = wanted(Kind::Azure, &url.replace("com/", "us/"), Grant::ClientCredentials);
        assert!(
            variables(&elsewhere)
                .contains(&("AZURE_AUTHORITY_HOST", "https://login.microsoftonline.us".into()))
        );
        assert!(check(&own).is_ok());
    }

    #[test]
    fn a_client_that_would_get_a_token_is_shown_nothing() {
        let google = "https://oauth2.googleapis.com/token";
        for (kind, url, grant) in [
            (Kind::Google, google, Grant::ClientCredentials),
            (Kind::Azure, google, Grant::ClientCredentials),
            (Kind::Azure, "https://login.microsoftonline.com/t/oauth2/v2.0/token", Grant::RefreshToken),
        ] {
            assert_eq!(check(&wanted(kind, url, grant)).unwrap_err().code, 2);
        }
        let mut plain = wanted(Kind::Google, google, Grant::RefreshToken);
        plain.secret.use_as = Use::Plain;
        assert!(check(&plain).unwrap_err().fix.unwrap().contains("oauth2.googleapis.com"));
    }
}
